"""What a machine can do, in the few numbers that the cost model reads.

Takes `rules/targets/NAME.yaml`; gives a frozen `Target`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from .schedule import RULES


@dataclass(frozen=True)
class Target:
    """Rates per second, times in seconds, sizes in bytes.

    `flops` is the peak of matrix products per dtype, `scalar_flops` that of elementwise
    work. `launch` is the fixed price of a generated kernel, `extern` that of a call into
    ATen. `reduction` is the share of a launch that one reduction pays, since neighbours of
    one domain become one kernel. `view` is what keeping one more node costs at all.
    """

    name: str
    device: str
    bandwidth: float
    cache_bandwidth: float
    cache: float
    flops: Mapping[str, float]
    scalar_flops: float
    launch: float
    extern: float
    reduction: float
    view: float
    memory: float  # seconds per byte of a constant folded at compile time

    def matrix_rate(self, dtype: str) -> float:
        """Peak matrix flops for a dtype; `any` where the file does not list it."""
        return self.flops.get(dtype, self.flops["any"])

    def traffic(self, size: float) -> float:
        """Seconds to move `size` bytes."""
        return size / (self.cache_bandwidth if size <= self.cache else self.bandwidth)


@lru_cache(maxsize=16)
def load_target(name: str, folder: Path | None = None) -> Target:
    """The target called `name`; a device type without a file of its own is `generic`.

    Raises ValueError naming the file where a number is missing or not positive.
    """
    base = folder or RULES / "targets"
    path = base / f"{name}.yaml"
    if not path.exists():
        path = base / "generic.yaml"
    data = yaml.safe_load(path.read_text())
    rates = {str(key): float(value) for key, value in data.pop("flops").items()}
    texts = {key: str(data.pop(key)) for key in ("name", "device")}
    try:
        numbers = {str(key): float(value) for key, value in data.items() if key != "doc"}
        fields: dict[str, Any] = {**texts, **numbers, "flops": rates}
        target = Target(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if "any" not in rates or min([*rates.values(), *numbers.values()]) <= 0:
        raise ValueError(f"{path}: every rate must be positive, and flops needs `any`")
    return target
