"""Checks that `verify` adds to a compile, and the error they raise.

Takes the results of the steps; raises `VerifyError`, which names the step and says in plain
words what is wrong with what it made.
"""

from __future__ import annotations

from collections.abc import Sequence

from .loops import Program
from .spec import problems

SHOWN = 3


class VerifyError(RuntimeError):
    """A step of the compiler made something that is not right."""


def refuse(step: str, found: Sequence[str]) -> None:
    """Raises where there are problems, with the first few of them."""
    if not found:
        return
    more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
    raise VerifyError(f"verify: after {step}: {'; '.join(found[:SHOWN])}{more}")


def check_program(step: str, program: Program) -> None:
    """Raises VerifyError where `program`, which `step` made, is no legal program."""
    refuse(step, problems(program))
