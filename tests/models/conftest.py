"""Every test here compiles from scratch, as Dynamo's cache is shared between instances, and with
every step checked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from eqsat.tests.verifying import verified


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _verified() -> Iterator[None]:
    with verified():
        yield
