"""Keeps loaded rule books on disk.

Takes hashes of what a book depends on; gives the book that was kept under them. The key holds
the text of the loader's own files too, so an edited loader never meets an old book. A folder
that cannot be written, or a damaged file, only costs the time of loading again.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch

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
            gc.enable()


class Shelf:
    """The place of one book."""

    def __init__(self, *hashes: str) -> None:
        key = hashlib.sha256("\0".join((*hashes, _loader_digest())).encode()).hexdigest()
        self.path = cache_dir() / "rules" / f"{key[:32]}.pickle"

    def take(self) -> RuleBook | None:
        """The book, or None where none was kept."""
        try:
            book = pickle.loads(self.path.read_bytes())
        except Exception:  # whatever a damaged file makes of pickle, it only means "not kept"
            return None
        return book if isinstance(book, RuleBook) else None

    def keep(self, book: RuleBook) -> None:
        """Writes the book so that a reader finds it whole or not at all."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".pickle")
            with os.fdopen(handle, "wb") as file:
                pickle.dump(book, file, protocol=pickle.HIGHEST_PROTOCOL)
            os.replace(name, self.path)
            # Books of edited rule files are never asked for again; so are half-written ones.
            books = sorted(self.path.parent.glob("*.pickle"), key=lambda path: path.stat().st_mtime)
            for path in books[:-BOOKS]:
                path.unlink(missing_ok=True)
        except OSError:
            return
