"""How strict a rule turns out to be: the strictest numerics class that holds in every example.

Takes the trials and structures of a rule whose examples all passed; gives a `Measured`. Only
classes stricter than the tag are tried, each until an example refutes it. Results are those of
`ReferenceWorld`, so that no kernel hides a rounding or adds one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .compare import excess, is_decisive
from .draw import Structure
from .rule import NUMERICS
from .trial import Rejected, Trials

_EXAMPLES = 64
_ENOUGH = 6  # examples that could have refuted a class, before it counts as measured
_LOOSE = 0.01  # a tolerance is loose where no example uses more than this part of it
_FILLINGS = ("normal", "special", "scaled", "normal", "counting", "positive", "marked", "huge")


@dataclass
class Measured:
    """The strictest class per kind of result, None where no example had such results; and
    the greatest part of the stated tolerance that an example used."""

    float_class: str | None = None
    int_class: str | None = None
    used: float = 0.0


def measure(trials: Trials, structures: Sequence[Structure]) -> Measured:
    """The classes of a rule, over a fixed number of examples."""
    numerics = trials.rule.numerics
    standing = {kind: _stricter(getattr(numerics, f"{kind}_class")) for kind in ("float", "int")}
    met = {"float": 0, "int": 0}
    decisive, used = 0, 0.0
    for place, structure in enumerate(itertools.islice(itertools.cycle(structures), _EXAMPLES)):
        if not any(standing.values()) and numerics.float_class != "approximate":
            break
        kind = _FILLINGS[(place + place // len(_FILLINGS)) % len(_FILLINGS)]
        filling = {name: (kind, place + at) for at, name in enumerate(structure.tensors)}
        try:
            results = trials.reference_sides(trials.values(structure, filling))
        except Rejected:
            continue
        for sides in results:
            part = "float" if sides.is_float else "int"
            met[part] += sides.left.numel() > 0
            standing[part] = [name for name in standing[part] if sides.holds(name)]
            decisive += is_decisive(sides)
            if numerics.float_class == "approximate" and sides.is_float:
                used = max(used, excess(sides, numerics.rtol, numerics.atol))
    if decisive < _ENOUGH:
        standing["float"] = [n for n in standing["float"] if n in ("exact", "signed_zero")]
    found = Measured(used=used)
    if met["float"]:
        found.float_class = next(iter(standing["float"]), numerics.float_class)
    if met["int"]:
        found.int_class = next(iter(standing["int"]), numerics.int_class)
    return found


def loose_tags(trials: Trials, measured: Measured) -> list[str]:
    """What to tell the author of a rule whose tag allows more than its examples needed."""
    numerics, found = trials.rule.numerics, []
    tag, floats = numerics.float_class, measured.float_class
    back = trials.rule.name.endswith("/back")  # a tag for both ways cannot say fewer_roundings
    if floats is not None and floats != tag and not (back and floats == "fewer_roundings"):
        found.append(f"tagged {tag}, but every example was {floats}")
    elif floats is not None and tag == "approximate" and measured.used < _LOOSE:
        found.append(
            f"no example used more than {max(measured.used, 1e-9):.1g} of the tolerance"
            f" (rtol {numerics.rtol:g}, atol {numerics.atol:g}): state a smaller one"
        )
    own = numerics.int_class != tag  # else the tag speaks of floats, and of integers by the way
    if own and measured.int_class not in (None, numerics.int_class):
        found.append(f"tagged int: {numerics.int_class}, but integers were {measured.int_class}")
    return found


def _stricter(tag: str) -> list[str]:
    return [] if tag == "random" else list(NUMERICS[: NUMERICS.index(tag)])
