"""Choices that are right if the rules are, but not cheap: what finds unsound rules.

Takes a `Problem` of extraction; gives a `Choice` of random, or of the dearest, members. Every
member of a class is said to be equal, so whichever stands in the graph, its results must be
those of the program that was given; where they are not, a rule or a decoded call is wrong.
"""

from __future__ import annotations

import random

from .search import Search
from .selection import Choice, Problem, first_choice

CHEAPEST, WORST, RANDOM = "cheapest", "worst", "random"
_PASSES = 4


def extraction_of(text: str) -> str:
    """What a setting says: "cheapest", "worst", or "random:SEED" ("random" is seed 0, and so
    is a bare number a seed). Raises ValueError for anything else."""
    kind, _, seed = text.partition(":")
    if text.isdecimal():
        kind, seed = RANDOM, text
    if kind == RANDOM and (not seed or seed.isdecimal()):
        return f"{RANDOM}:{int(seed or 0)}"
    if kind in (CHEAPEST, WORST) and not seed:
        return kind
    raise ValueError("expected cheapest, worst or random:SEED")


def disturbed(problem: Problem, extraction: str) -> Choice:
    """A choice by `extraction` (see `extraction_of`), which is not "cheapest". Raises
    ValueError where a root has no node at all."""
    node, before = first_choice(problem)
    search = Search(problem, node)
    if extraction == WORST:
        _worsen(search)
    else:
        _shuffle(search, random.Random(int(extraction.partition(":")[2])))
    return Choice(search.node, frozenset(search.used()), search.total, before)


def _shuffle(search: Search, rng: random.Random) -> None:
    """Gives every class a random node among those that make no cycle with the rest."""
    owners = [owner for owner, group in enumerate(search.problem.members) if len(group) > 1]
    rng.shuffle(owners)
    for owner in owners:
        members = list(search.problem.members[owner])
        rng.shuffle(members)
        for index in members:
            if index == search.node[owner] or search.switch(owner, index):
                break


def _worsen(search: Search) -> None:
    """Takes every switch of a used class that makes the graph dearer."""
    for _ in range(_PASSES):
        start = search.total
        for owner, members in enumerate(search.problem.members):
            for index in members:
                old, total = search.node[owner], search.total
                if not search.count[owner] or index == old:
                    continue
                if search.switch(owner, index) and search.total < total:
                    search.switch(owner, old)
        if search.total == start:
            return
