"""Rule packs whose rules can be seen in results: each turns an op into a multiple of its input."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import eqsat
from eqsat.config import resolve
from eqsat.session import Session, open_session


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No settings, packs or graphs of another test."""
    eqsat.reset()
    yield
    eqsat.reset()


def tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def marker(factor: int, op: str = "tanh", name: str = "marker", **more: str) -> str:
    """A wrong rule, on purpose: `op(x)` becomes `x * factor`."""
    text = f"""
        - rule: {name}
          doc: Shows which pack was used.
          vars:
            x: float[...]
          match: {op}(x)
          make: x * {factor}
          numerics: exact
    """
    extra = "".join(f"  {key}: {value}\n" for key, value in more.items())
    return textwrap.dedent(text).rstrip() + "\n" + extra


def write(path: Path, text: str) -> str:
    """Writes a rule file with its folders; gives the path as options take it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def opened(*told: list[str], **options: Any) -> Session:
    """The session of a compile with these options; warnings go to the list `told`."""
    heard = told[0] if told else []
    return open_session(resolve(None, options), heard.append)


def names(session: Session) -> set[str]:
    return {entry.name for entry in (*session.book.rules, *session.book.fuse)}
