"""The on-disk cache of generated code.

Takes bytes and names; gives paths under `cache_dir()`. Files appear whole or not at all, so
several processes may share one folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder: EQSAT_CACHE_DIR, else ~/.cache/eqsat.

    A folder that cannot be written to is replaced by a temporary one, with one warning.
    """
    named = os.environ.get("EQSAT_CACHE_DIR")
    return _usable(named or str(Path("~/.cache/eqsat").expanduser()))


@contextlib.contextmanager
def fresh_cache() -> Iterator[Path]:
    """Inside the block the cache is an empty temporary folder, gone afterwards."""
    before = os.environ.get("EQSAT_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="eqsat-") as folder:
        os.environ["EQSAT_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["EQSAT_CACHE_DIR"]
            else:
                os.environ["EQSAT_CACHE_DIR"] = before


def digest(*parts: str | bytes) -> str:
    """A hex sha256 over `parts`, each counted with its length so that no two lists collide."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step; a reader sees the old file or the new one.

    Raises OSError where the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@lru_cache(maxsize=64)
def _usable(folder: str) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            return path
    except OSError as error:
        other = Path(tempfile.mkdtemp(prefix="eqsat-"))
        warnings.warn(
            f"eqsat: cannot write to the cache folder {path} ({error}); using {other}. "
            "Set EQSAT_CACHE_DIR to a writable folder to keep compiled code between runs.",
            stacklevel=3,
        )
        return other
