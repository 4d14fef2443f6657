"""Rules that say what another rule says already.

Takes rules; gives pairs. A graph of the left side of a rule is given to another rule alone: where
the first rule finds nothing left to do after that, in every example, nothing is lost without it.
Spelling does not matter, unlike for W705 of `eqsat lint`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from torch import fx

from .apply import Applier
from .beside import covers
from .draw import TORCH_ERRORS, Search
from .encode import encode
from .ops import OpTable
from .pattern import Pattern, PatternError
from .rule import Rule
from .saturate import Saturator
from .schedule import Phase
from .stage import compiled_pattern
from .termination import graph_of
from .trial import Rejected, Trials

_EXAMPLES, _ATTEMPTS = 12, 2000
_MATCHES, _ROUNDS, _MOST_NODES = 200, 2, 400
# What inputs are known to be: nothing, parameters, parameters that may be folded.
_KNOWN = ("nothing", "weights", "frozen")


@dataclass(frozen=True)
class Overlap:
    """Without `narrow`, `wide` does all of it; `both`: and the other way round."""

    narrow: Rule
    wide: Rule
    both: bool = False

    def __str__(self) -> str:
        how = "say the same" if self.both else "the first is part of the second"
        pair = f"{self.narrow.name} ({self.narrow.where}) and {self.wide.name} ({self.wide.where})"
        return f"{pair}: {how}"


@dataclass(frozen=True)
class _Example:
    """A graph of the left side of a rule. `known` is the least that inputs must be for the rule
    to fire."""

    graph: fx.GraphModule
    known: str


def overlaps(rules: Sequence[Rule], beside: Sequence[Rule], table: OpTable) -> Iterator[Overlap]:
    """Pairs of `rules`, and of them with `beside`: first the rule that could go. Members of one
    entry are not compared. A pair that says the same is given once."""
    by_name = {rule.name: rule for rule in (*rules, *beside) if rule.stage != "trace"}
    patterns = {name: _pattern(rule, table) for name, rule in by_name.items()}
    found: dict[tuple[str, str], Overlap] = {}
    for narrow in rules:
        if narrow.name not in by_name:
            continue
        examples: Sequence[_Example] | None = None
        for wide in by_name.values():
            if not _may_cover(wide, narrow, patterns):
                continue
            if examples is None:
                examples = tuple(_examples(narrow, table))
            if examples and all(_does_all(wide, narrow, one, table) for one in examples):
                found[narrow.name, wide.name] = Overlap(narrow, wide)
    for (first, second), overlap in found.items():
        if (second, first) not in found:
            yield overlap
        elif first < second:
            yield Overlap(overlap.narrow, overlap.wide, both=True)


def _pattern(rule: Rule, table: OpTable) -> Pattern | None:
    try:
        return compiled_pattern(rule, table)
    except PatternError:
        return None


def _may_cover(wide: Rule, narrow: Rule, patterns: Mapping[str, Pattern | None]) -> bool:
    """Whether `wide` is there wherever `narrow` is, and looks for no op that `narrow` lacks."""
    ours, theirs = patterns[wide.name], patterns[narrow.name]
    return (
        ours is not None
        and theirs is not None
        and wide.where != narrow.where
        and wide.stage == narrow.stage
        and len(ours.roots) == len(theirs.roots)
        and ours.ops <= theirs.ops
        and covers(wide, narrow)
    )


def _examples(rule: Rule, table: OpTable) -> Iterator[_Example]:
    """Graphs in which the rule fires, the largest first: the small ones are special cases."""
    trials = Trials(rule, table)
    structures = Search(rule, table, Random(rule.name)).collect(_EXAMPLES, _ATTEMPTS)
    for structure in reversed(structures):
        try:
            graph = graph_of(trials, trials.smooth_values(structure), left_alone=True)
        except (Rejected, *TORCH_ERRORS):
            continue
        for known in _KNOWN:
            one = _Example(graph, known)
            if _fires((), rule, one, table):
                yield one
                break


def _does_all(wide: Rule, narrow: Rule, example: _Example, table: OpTable) -> bool:
    """Whether `wide` alone leaves nothing to `narrow`."""
    return not _fires((wide,), narrow, example, table)


def _fires(first: Sequence[Rule], rule: Rule, example: _Example, table: OpTable) -> bool:
    """Whether a rule finds something to do after the rules `first`."""
    inputs = example.graph.graph.find_nodes(op="placeholder")
    places = {node.name: place for place, node in enumerate(inputs)}
    weights = {} if example.known == "nothing" else places
    frozen = frozenset(places) if example.known == "frozen" else frozenset()
    encoding = encode(example.graph, table, weights=weights, frozen=frozen)
    if encoding is None:
        return False
    phase = Phase("overlap", ("first", "last"), iterations=_ROUNDS, matches=_MATCHES)
    applier = Applier(encoding.graph, table, None)
    patterns = {
        "first": [compiled_pattern(other, table) for other in first],
        "last": [compiled_pattern(rule, table)],
    }
    with Saturator(encoding.graph, applier, patterns) as saturator:
        for folder in patterns:
            saturator.run(phase, [folder], _MOST_NODES)
    return any(firing.rule is rule for firing in applier.firings)
