"""The corners of a rule: what every check covers before it draws at random.

Takes a rule; gives `fixed` parts of examples, as `Search` takes them: each dtype alone, two
dtypes mixed, empty and single sizes, special constants. What the rule's conditions exclude is
no corner; the search finds that out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from .draw import Search, Structure
from .expr import Name
from .fill import SMOOTH
from .ops import OpTable
from .rule import ConstType, Rule, TensorType

_DTYPES = ("f32", "f16", "bf16", "f64", "i64", "u8", "i32", "i8", "i16", "bool", "c64")
_MIXED = (("f16", "f32"), ("f32", "bf16"), ("f64", "f32"), ("i64", "f32"), ("i32", "i64"))
_LEADS: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (2, 0), (5, 7))
_SPECIAL_FLOATS = (math.inf, math.nan, 0.0, -0.0, -math.inf, 1.0, 1e30, -1.0)
_SPECIAL_INTS = (0, 1, -1, 2)
_MOST_TRIES = 40
# Examples of one element hold one special value per tensor: a few take turns on all of them.
_MOST_SINGLE, _TURNS = 4, 8
# Fillings that all tensors of an example, or one of them beside ordinary ones, hold. Whether inf
# or an overflow shows depends on sizes and signs: these are tried on several structures.
_TOGETHER = (
    *("special", "marked", "huge", "shifted", "scaled", "counting", "positive", "ones"),
    *("huge", "huge", "huge"),
)
_ALONE = ("special", "huge", "marked", "special", "huge", "special", "huge")

Filling = dict[str, tuple[str, int]]


def corner_structures(
    rule: Rule, table: OpTable, random: Random, most: int, tries: int
) -> list[Structure]:
    """A structure in each of at most `most` corners, as far as `tries` draws find one."""
    found: dict[str, Structure] = {}
    for fixed in _corners(rule):
        if len(found) >= most:
            break
        for structure in Search(rule, table, random, fixed).collect(1, min(tries, _MOST_TRIES)):
            found.setdefault(structure.key, structure)
    return list(found.values())


def corner_examples(structures: Sequence[Structure]) -> Iterator[tuple[Structure, Filling]]:
    """Every structure with ordinary and with special values, single elements with several, and
    with the numbers that the rule speaks of; then every filling in all tensors at once, and the
    nasty ones in one tensor after the other."""
    kinds = (SMOOTH, "special", "marked")
    for (place, structure), kind in itertools.product(enumerate(structures), kinds):
        if kind == "marked" and not structure.marks:
            continue
        yield structure, {name: (kind, place + at) for at, name in enumerate(structure.tensors)}
    for structure in [one for one in structures if one.is_single][:_MOST_SINGLE]:
        for turn in range(_TURNS):
            yield (
                structure,
                {
                    name: ("special", turn * _TURNS + at)
                    for at, name in enumerate(structure.tensors)
                },
            )
    filled = [structure for structure in structures if structure.has_elements]
    if not filled:
        return
    turns = itertools.cycle(reversed(filled))
    names = filled[0].tensors
    for place, kind in enumerate(_TOGETHER):
        yield next(turns), {name: (kind, place + at) for at, name in enumerate(names)}
    for place, kind in enumerate(_ALONE if len(names) > 1 else ()):
        for name in names:
            plain = {other: (SMOOTH, place + at) for at, other in enumerate(names)}
            yield next(turns), {**plain, name: (kind, place + len(plain))}


def _corners(rule: Rule) -> Iterator[dict[str, Any]]:
    """The kinds of corners take turns, so that the first few hold some of each."""
    kinds = (_one_dtype(rule), _sizes(rule), _constants(rule), _two_dtypes(rule))
    for turn in itertools.zip_longest(*kinds):
        yield from (corner for corner in turn if corner is not None)


def _one_dtype(rule: Rule) -> Iterator[dict[str, Any]]:
    tensors = _tensors(rule)
    for word in _DTYPES:
        corner = {name: word for name, kind in tensors.items() if word in kind.dtypes}
        if corner:
            yield corner


def _two_dtypes(rule: Rule) -> Iterator[dict[str, Any]]:
    """One variable of another dtype than the others."""
    tensors = _tensors(rule)
    if len(tensors) < 2:
        return
    for (one, others), odd in itertools.product(_MIXED, tensors):
        if one in tensors[odd].dtypes:
            rest = {n: others for n, kind in tensors.items() if others in kind.dtypes}
            yield {**rest, odd: one}


def _sizes(rule: Rule) -> Iterator[dict[str, Any]]:
    kinds = _tensors(rule).values()
    leads = dict.fromkeys(kind.lead for kind in kinds if kind.lead is not None)
    letters = dict.fromkeys(dim.id for kind in kinds for dim in kind.dims if isinstance(dim, Name))
    for length in (0, 1):
        yield from ({letter: length} for letter in letters)
    yield from ({f"...{lead}": sizes} for sizes in _LEADS for lead in leads)
    if len(letters) > 1:
        yield dict.fromkeys(letters, 1)  # sums of one term keep the sign of a zero
    # Two ways to be empty: what an empty mean makes NaN, a sum over no columns forgets.
    yield from (dict.fromkeys(pair, 0) for pair in itertools.combinations(letters, 2))


def _constants(rule: Rule) -> Iterator[dict[str, Any]]:
    values = {
        "float": _SPECIAL_FLOATS,
        "int": _SPECIAL_INTS,
        "any": (*_SPECIAL_FLOATS, *_SPECIAL_INTS),
        "bool": (False, True),
        "dtype": _DTYPES,
    }
    pools = [
        [{name: value} for value in values.get(kind.kind, ())]
        for name, kind in rule.vars.items()
        if isinstance(kind, ConstType)
    ]
    for turn in itertools.zip_longest(*pools):
        corners = [corner for corner in turn if corner is not None]
        yield from corners
        if len(corners) > 1:  # two large factors overflow where one does not
            yield {name: value for corner in corners for name, value in corner.items()}


def _tensors(rule: Rule) -> dict[str, TensorType]:
    return {name: kind for name, kind in rule.vars.items() if isinstance(kind, TensorType)}
