"""Options and fixtures of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import hypothesis
import pytest
import torch

from eqsat.tests.golden import Golden

if not torch.cuda.is_available():  # read when Triton is imported, by whichever test is the first
    os.environ["TRITON_INTERPRET"] = "1"

# The same examples in every run, however slow the machine is.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or leaves files in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQSAT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--bless")), request.node.nodeid)
