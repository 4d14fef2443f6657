"""CPU time of loading the built-in rules, with an empty cache and from a full one.

    python -m benchmarks.loading [--rounds N]

Every measurement is a fresh process, after its imports. Prints the number of rules and the
medians in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

# What one process does: prints its milliseconds and how many rules there are.
_ONCE = """
import time
from eqsat.engine.load import RULES, load_book
start = time.process_time()
book = load_book([RULES])
print(1000 * (time.process_time() - start), len(book.rules))
"""


def measure(cache: str) -> tuple[float, int]:
    """Milliseconds of one load with the cache in the folder `cache`, and the number of rules."""
    result = subprocess.run(
        [sys.executable, "-c", _ONCE],
        env=os.environ | {"EQSAT_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    milliseconds, rules = result.stdout.split()
    return float(milliseconds), int(rules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    empty: list[float] = []
    full: list[float] = []
    rules = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for times in (empty, full):  # the first load fills what the second one reads
                milliseconds, rules = measure(cache)
                times.append(milliseconds)
    print(f"{rules} rules, median of {rounds} fresh processes (CPU time)")
    print(f"  empty cache  {statistics.median(empty):7.1f} ms")
    print(f"  from cache   {statistics.median(full):7.1f} ms")


if __name__ == "__main__":
    main()
