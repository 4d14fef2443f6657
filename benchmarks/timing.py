"""Interleaved timing of the same call under several backends, as ratios.

Takes callables that do equal work; gives the median of each over rounds in which every one
runs once, so that a noisy machine disturbs all alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping


def interleave(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 3.0, least: int = 15
) -> dict[str, float]:
    """Median seconds per call. Runs at least `least` rounds, then until `seconds` are used."""
    for call in calls.values():
        for _ in range(3):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(next(iter(times.values()))) < least:
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}
