"""Compiles whose every step is checked while a test runs.

`verified` switches `EQSAT_VERIFY` on and fails where a check of any compile inside found something
wrong: a fallback alone would leave a test green.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eqsat.lowering.verify import VerifyError
from eqsat.reports import recording


@contextmanager
def verified() -> Iterator[None]:
    """Raises AssertionError at the end where a step, or a first call, was not right."""
    with pytest.MonkeyPatch.context() as patch, recording() as reports:
        patch.setenv("EQSAT_VERIFY", "1")
        yield
    marks = ("verify: ", VerifyError.__name__)
    wrong = [report.fallback for report in reports if report.fallback.startswith(marks)]
    assert not wrong, "\n".join(wrong)
