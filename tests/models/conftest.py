"""Every test here compiles from scratch: Dynamo's cache is shared between instances."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
