"""The numbers that decide which loops a nest becomes: the `loops` of a target file.

Takes the map under that key; gives a frozen `LoopChoices`. Whatever shapes a loop and has no
reason but speed on a machine is here, and none of it in the code that writes the loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from .choices import choice


@dataclass(frozen=True)
class LoopChoices:
    """Counts are elements or points unless they say otherwise."""

    parallel_work: int = choice("Scalar operations of a nest from which on it runs on threads.")
    few_points: int = choice("Points of outer loops with which threads cut the inner loop too.")
    collapse_points: int = choice("Points of outer loops that are enough to share among threads.")
    stretch: int = choice("Elements summed before the sum is added to a wider one.")
    search: int = choice("Elements whose extreme is found before its place.")
    chunks: int = choice("Pieces of a long reduction that is split over threads.")
    column_chunks: int = choice("Pieces of a split reduction over columns; each holds its lanes.")
    column_rows: int = choice("Rows summed in lanes before the sums are added to wider ones.")
    tile: int = choice("Edge of the square tiles in which loads across the stores are walked.")
    short_side: int = choice("Length of an axis from which on tiles pay.")
    short_step: int = choice("Elements between neighbours from which on tiles pay.")
    lanes: int = choice("Columns reduced side by side where their number is not known.")
    widest_lanes: int = choice("Columns reduced side by side at most.")
    fewest_lanes: int = choice("Columns from which on they are reduced side by side.")
    short_rows: int = choice("Length of rows up to which columns are taken although they skip.")
    lane_block: int = choice("Elements of a block of columns that is walked more than once.")
    row_elements: int = choice("Elements of a row that is kept between two passes over it.")
    row_bytes: int = choice("Bytes of all rows kept by one nest, on the stack of each thread.")
    dear: float = choice(
        "Operations from which on a value is kept, not computed again.", whole=False
    )
    shortest_piece: int = choice("Points of the pieces into which a whole axis may be cut.")
    window: int = choice("Points of a window (of a pool) up to which it is written out.")
    unrolled_points: int = choice("Points of a reduction up to which it is written out.")
    unrolled_scalars: int = choice("Operations of the body that may come of it.")
    interleaved_scalars: int = choice(
        "Operations of a body that is repeated for neighbours that read one element."
    )
    table_places: int = choice("Computed places along an axis that are looked through as a table.")
    table_scalars: int = choice("Operations that compute such a place at most.")
    region_points: int = choice("Points inside of a border from which on they have their own loop.")
    region_pieces: int = choice("Stretches of an outer axis that may have loops of their own.")
    region_scalars: int = choice("Operations of all copies of a body that a border causes.")
