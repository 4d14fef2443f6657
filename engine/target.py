"""What a machine can do, in the few numbers that the cost model reads.

Takes `rules/targets/NAME.yaml`; gives a frozen `Target`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from .files import RULES
from .rule import DTYPE_WORDS
from .settings import read_settings

_NO_NUMBERS = ("name", "device", "flops")
_WHOLE = ("units", "tile")


@dataclass(frozen=True)
class Target:
    """Rates per second, times in seconds, sizes in bytes.

    `flops` is the peak of matrix products per dtype, `scalar_flops` that of elementwise
    work. `units` is how many parts of a product are computed at once (cores, streaming
    multiprocessors), `tile` the most elements of a result that one of them holds. `launch` is
    the fixed price of a generated kernel, `extern` that of a call into ATen. `reduction` is the
    share of a launch that one reduction pays, since neighbours of one domain become one kernel.
    `strided` is how much longer it takes to read rows that lie apart, as a share of their
    traffic. `view` is what keeping one more node costs at all, `memory` the price of a byte of a
    constant folded at compile time.
    """

    name: str
    device: str
    bandwidth: float
    cache_bandwidth: float
    cache: float
    flops: Mapping[str, float]
    scalar_flops: float
    units: float
    tile: float
    launch: float
    extern: float
    reduction: float
    strided: float
    view: float
    memory: float

    def matrix_rate(self, dtype: str) -> float:
        """Peak matrix flops for a dtype; `any` where the file does not list it."""
        return self.flops.get(dtype, self.flops["any"])

    def traffic(self, size: float, cold: float = 0.0) -> float:
        """Seconds to move `size` bytes, of which `cold` ones are not in the cache yet: all
        through the cache, and from memory those and what the cache cannot hold."""
        beyond = cold + max(0.0, size - cold - self.cache)
        return max(size / self.cache_bandwidth, beyond / self.bandwidth)


@lru_cache(maxsize=16)
def load_target(name: str, folder: Path | None = None) -> Target:
    """The target called `name`; a device type without a file of its own is `generic`.

    Raises RuleErrors with every mistake and its place.
    """
    base = folder or RULES / "targets"
    path = base / f"{name}.yaml"
    return read_target(path if path.exists() else base / "generic.yaml")


def read_target(path: Path) -> Target:
    """The target in a file. Raises RuleErrors with every mistake and its place."""
    settings = read_settings(path)
    known = [field.name for field in fields(Target)]
    settings.only(("doc", *known), "a target")
    settings.need(known, "a target")
    flops = settings.map("flops")
    flops.only((*DTYPE_WORDS["any"], "any"), "'flops'")
    if flops.values:
        flops.need(("any",), "'flops'")
    rates = {dtype: flops.number(dtype) for dtype in flops.values}
    numbers: dict[str, float] = {
        key: settings.number(key, whole=key in _WHOLE) for key in known if key not in _NO_NUMBERS
    }
    texts = {key: settings.text(key) for key in ("name", "device")}
    settings.finish()
    return Target(**{**texts, **numbers, "flops": rates})  # type: ignore[arg-type]
