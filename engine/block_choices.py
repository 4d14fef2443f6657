"""The numbers that decide how a GPU shares out the work of a kernel: the `blocks` of a target
file. Whatever shapes a block and has no reason but speed on a machine is here."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import choice


@dataclass(frozen=True)
class BlockChoices:
    """Counts are elements unless they say otherwise; sides of blocks are rounded down to powers
    of two."""

    flat: int = choice("Elements of a block of a pointwise kernel.")
    least_flat: int = choice("The same where there is not enough to do for all units.")
    square: int = choice("Edge of the square tiles of a transposed copy.")
    crossing: int = choice("Length of an axis from which on such tiles pay.")
    row: int = choice("Elements of the rows of all buffers that a program keeps in registers.")
    least_row: int = choice("Length of a row that is always kept.")
    columns: int = choice("Length of columns that are kept.")
    across: int = choice("Columns side by side.")
    tile: int = choice("Elements of a tile of rows or columns.")
    step: int = choice("Elements of a row that is walked in steps, per step.")
    least_piece: int = choice("Length of the pieces of a row that several programs share.")
    programs: int = choice("Programs of a kernel that fill the GPU.")
    per_thread: int = choice("Elements per thread.")
    warps: int = choice("Warps of a program at most.")
