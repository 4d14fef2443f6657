"""Keeps loaded rule books on disk.

Takes hashes of what a book depends on; gives the book that was kept under them. The key holds
the text of the loader's own files too, so an edited loader never meets an old book. A folder
that cannot be written, or a damaged file, only costs the time of loading again.

A kept rule knows where it stands, but its expressions do not: nothing asks for their places once
the rule is checked, and without them one `Name` serves for all that are spelled alike.
"""

from __future__ import annotations

import copyreg
import gc
import hashlib
import io
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .expr import Expr, Name
from .rule import RuleBook

BOOKS = 64  # how many books are kept, the latest ones


def cache_dir() -> Path:
    """The folder for everything that eqsat keeps: `EQSAT_CACHE_DIR` or ~/.cache/eqsat."""
    given = os.environ.get("EQSAT_CACHE_DIR")
    return Path(given) if given else Path(os.path.expanduser("~")) / ".cache" / "eqsat"


@lru_cache(maxsize=1)
def _loader_digest() -> str:
    digest = hashlib.sha256(f"{sys.version}\0{torch.__version__}".encode())
    for path in sorted(Path(__file__).resolve().parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def without_collection() -> Iterator[None]:
    """Pauses garbage collection: a load makes many small objects, and none is garbage."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            if not gc.get_freeze_count():
                # Both together make every object an old one, so that the collection which is
                # due now does not visit the whole book.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _without_place(expr: Expr) -> tuple[Any, ...]:
    """How an expression is pickled: `span` falls back to the class's own."""
    state = {key: value for key, value in expr.__dict__.items() if key != "span"}
    return copyreg.__newobj__, (type(expr),), state  # type: ignore[attr-defined]


@lru_cache(maxsize=4096)
def _shared_name(word: str) -> Name:
    return Name(word)


def _as_shared(name: Name) -> tuple[Any, ...]:
    return _shared_name, (name.id,)


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | {
        **{kind: _without_place for kind in Expr.__subclasses__()},
        Name: _as_shared,
    }


class Shelf:
    """The place of one book."""

    def __init__(self, *hashes: str) -> None:
        key = hashlib.sha256("\0".join((*hashes, _loader_digest())).encode()).hexdigest()
        self.path = cache_dir() / "rules" / f"{key[:32]}.pickle"

    def take(self) -> RuleBook | None:
        """The book, or None where none was kept."""
        try:
            file = io.BytesIO(self.path.read_bytes())
            book = pickle.load(file)
            return replace(book, fuse=pickle.load(file)) if isinstance(book, RuleBook) else None
        except Exception:  # whatever a damaged file makes of pickle, it only means "not kept"
            return None

    def keep(self, book: RuleBook) -> None:
        """Writes the book so that a reader finds it whole or not at all."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".pickle")
            with os.fdopen(handle, "wb") as file:
                _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(replace(book, fuse=()))
                # Lowering still tells where in a pair rule a mistake is.
                pickle.dump(book.fuse, file, pickle.HIGHEST_PROTOCOL)
            os.replace(name, self.path)
            # Books of edited rule files are never asked for again; so are half-written ones.
            books = sorted(self.path.parent.glob("*.pickle"), key=lambda path: path.stat().st_mtime)
            for path in books[:-BOOKS]:
                path.unlink(missing_ok=True)
        except OSError:
            return
