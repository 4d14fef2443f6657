"""The numbers that decide which loops a nest becomes: the `loops` of a target file.

Takes the map under that key; gives a frozen `LoopChoices`. Whatever shapes a loop and has no
reason but speed on a machine is here, and none of it in the code that writes the loops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from .settings import Settings


def _choice(doc: str, *, whole: bool = True) -> Any:
    return field(metadata={"doc": doc, "whole": whole})


@dataclass(frozen=True)
class LoopChoices:
    """Counts are elements or points unless they say otherwise."""

    parallel_work: int = _choice("Scalar operations of a nest from which on it runs on threads.")
    few_points: int = _choice("Points of outer loops with which threads cut the inner loop too.")
    collapse_points: int = _choice("Points of outer loops that are enough to share among threads.")
    stretch: int = _choice("Elements summed before the sum is added to a wider one.")
    search: int = _choice("Elements whose extreme is found before its place.")
    chunks: int = _choice("Pieces of a long reduction that is split over threads.")
    column_chunks: int = _choice("Pieces of a split reduction over columns; each holds its lanes.")
    column_rows: int = _choice("Rows summed in lanes before the sums are added to wider ones.")
    tile: int = _choice("Edge of the square tiles in which loads across the stores are walked.")
    short_side: int = _choice("Length of an axis from which on tiles pay.")
    short_step: int = _choice("Elements between neighbours from which on tiles pay.")
    lanes: int = _choice("Columns reduced side by side where their number is not known.")
    widest_lanes: int = _choice("Columns reduced side by side at most.")
    fewest_lanes: int = _choice("Columns from which on they are reduced side by side.")
    short_rows: int = _choice("Length of rows up to which columns are taken although they skip.")
    lane_block: int = _choice("Elements of a block of columns that is walked more than once.")
    row_elements: int = _choice("Elements of a row that is kept between two passes over it.")
    row_bytes: int = _choice("Bytes of all rows kept by one nest, on the stack of each thread.")
    dear: float = _choice(
        "Operations from which on a value is kept, not computed again.", whole=False
    )
    shortest_piece: int = _choice("Points of the pieces into which a whole axis may be cut.")
    window: int = _choice("Points of a window (of a pool) up to which it is written out.")
    region_points: int = _choice(
        "Points inside of a border from which on they have their own loop."
    )
    region_pieces: int = _choice("Stretches of an outer axis that may have loops of their own.")
    region_scalars: int = _choice("Operations of all copies of a body that a border causes.")


def read_loop_choices(settings: Settings, base: LoopChoices | None) -> LoopChoices:
    """The choices in a map; those it leaves out are those of `base`, where there is one. Mistakes
    are reported to the settings."""
    known = [one.name for one in fields(LoopChoices)]
    settings.only(known, "'loops'")
    if base is None:
        settings.need(known, "'loops'")
    values: dict[str, Any] = {}
    for one in fields(LoopChoices):
        whole = one.metadata["whole"]
        default = 1.0 if base is None else getattr(base, one.name)
        number = settings.number(one.name, default, whole=whole)
        values[one.name] = int(number) if whole else number
    return LoopChoices(**values)
