"""Judges mutants: which are caught, and which of the others are no mistakes at all.

    python -m eqsat.tests.engine.mutants.sweep [--jobs 2] [--every 1]

judges all mutants of the built-in rules and prints how many are caught, by operator and by folder,
and which are not. It fails where fewer than 98 of 100 are caught.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import yaml

from .entries import Mutant, all_mutants
from .verdicts import is_the_same_program, op_table, verdict

HERE = Path(__file__).resolve().parent
# These make a rule claim more: other inputs, a stricter class, a gradient. That is a mistake only
# where the larger claim is false, which a hunt with many more examples has to show.
CLAIMING = frozenset(
    {
        *("dropped-condition", "loosened-condition", "dropped-bound", "dropped-assumption"),
        *("wider-type", "wrong-rank", "strict-tag", "lost-gradient"),
    }
)
_HUNT_SEEDS, _HUNT_EXAMPLES = (1, 2), 150
_WANTED = 0.98


@dataclass(frozen=True)
class Outcome:
    """`kind` is "caught" or "missed" for a mistake; "same" (the same program), "right" (a larger
    claim that holds) or "excused" (excused.yaml says why) for what is none; "crash" where a
    kernel of torch takes the process with it."""

    mutant: Mutant
    kind: str
    text: str = ""

    @property
    def counts(self) -> bool:
        return self.kind in ("caught", "missed")


def judge(mutant: Mutant) -> Outcome:
    excuse = excuse_of(mutant)
    if excuse is not None:
        return Outcome(mutant, "excused", excuse)
    text = verdict(mutant)
    if text is not None:
        return Outcome(mutant, "caught", text)
    if is_the_same_program(mutant):
        return Outcome(mutant, "same")
    if mutant.operator in CLAIMING and not is_hunted_down(mutant):
        return Outcome(mutant, "right")
    return Outcome(mutant, "missed")


def is_hunted_down(mutant: Mutant) -> bool:
    """Whether many more examples, drawn from other seeds than the default, show a mistake."""
    return any(verdict(mutant, seed, _HUNT_EXAMPLES) is not None for seed in _HUNT_SEEDS)


def excuse_of(mutant: Mutant) -> str | None:
    """Why the change is no mistake although another program comes of it."""
    for entry in _excuses():
        wanted = {"rule": mutant.rule, "operator": mutant.operator, "change": mutant.key}
        if all(fnmatch.fnmatchcase(wanted[name], entry.get(name, "*")) for name in wanted):
            return entry["why"]
    return None


@lru_cache(maxsize=1)
def _excuses() -> list[Mapping[str, str]]:
    text = (HERE / "excused.yaml").read_text(encoding="utf-8")
    entries: list[Mapping[str, str]] = yaml.load(text, Loader=yaml.BaseLoader)
    return entries


def judge_all(mutants: Sequence[Mutant], jobs: int = 2) -> Iterator[Outcome]:
    """Outcomes in the order in which they come. A mutant that crashes its process is told as
    such, and the next process goes on behind it."""
    op_table()  # before the fork
    queues = {place: list(mutants[place::jobs]) for place in range(jobs)}
    running = {_start(queue): place for place, queue in queues.items() if queue}
    while running:
        for connection in wait(list(running)):
            assert isinstance(connection, Connection)
            place = running[connection]
            try:
                yield connection.recv()
            except EOFError:
                del running[connection]
                if queues[place]:
                    yield Outcome(queues[place].pop(0), "crash")
                if queues[place]:
                    running[_start(queues[place])] = place
            else:
                queues[place].pop(0)


def _start(queue: Sequence[Mutant]) -> Connection:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    context.Process(target=_work, args=(list(queue), theirs), daemon=True).start()
    theirs.close()
    return ours


def _work(queue: Sequence[Mutant], connection: Connection) -> None:
    torch.set_num_threads(1)
    for mutant in queue:
        connection.send(judge(mutant))


def _print_rates(outcomes: Sequence[Outcome]) -> float:
    """Prints a table; gives the part that is caught of what counts."""
    for title, key in (("operator", "operator"), ("folder", "folder")):
        groups = sorted({getattr(outcome.mutant, key) for outcome in outcomes})
        print(f"{title:22} all  count caught")
        for group in groups:
            ours = [o for o in outcomes if getattr(o.mutant, key) == group]
            counting = [o for o in ours if o.counts]
            caught = sum(o.kind == "caught" for o in counting)
            print(f"{group:20} {len(ours):5} {len(counting):6} {caught:6}")
    for outcome in outcomes:
        if outcome.kind in ("missed", "crash"):
            print(f"{outcome.kind}: {outcome.mutant.folder} {outcome.mutant.key}")
    kinds = Counter(outcome.kind for outcome in outcomes)
    counting = sum(outcome.counts for outcome in outcomes)
    print(dict(kinds), f"{kinds['caught']} of {counting} mistakes are caught")
    return kinds["caught"] / max(counting, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="judge all mutants of the built-in rules")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only every n-th mutant")
    options = parser.parse_args()
    outcomes = list(judge_all(list(all_mutants())[:: options.every], options.jobs))
    return 0 if _print_rates(outcomes) >= _WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
