"""Entries of kind `decompose`: ops that torch's own reference decompositions open while
AOTAutograd traces.

Takes the fields of an entry, or entries; gives the frozen entry, or a table from overload to
function, as AOTAutograd's `decompositions` want it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._decomp import get_decompositions

from .document import Scalar
from .fields import Fields
from .op import find_overload
from .rule import DecomposeEntry, Numerics
from .rule_entries import read_numerics
from .source import did_you_mean

Table = Mapping[Any, Callable[..., Any]]

_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
# Decompositions that give wrong results, and why.
_SAVED = "its backward reads statistics that the decomposition does not give"
_SCALES = "its decomposition forgets the scale factors"
WRONG: Mapping[str, str] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": _SAVED,
    **{f"{kind}{dims}d.default": _SCALES for kind in _NEAREST for dims in (1, 2, 3)},
    "multilabel_margin_loss_forward.default": "its decomposition counts targets behind a -1",
}


def read_decompose(fields: Fields, folder: str) -> DecomposeEntry | None:
    """The entry; None where it has mistakes. An op that torch has, but not its decomposition,
    is a warning: versions of torch differ in what they decompose."""
    entry = DecomposeEntry(
        name=fields.name(),
        doc=fields.text("doc"),
        span=fields.head,
        folder=folder,
        aten=tuple(_overload(fields, item) for item in fields.scalars("aten")),
        numerics=read_numerics(fields) or Numerics("exact", "exact"),
        ref=fields.text("ref"),
        text=fields.entry.text,
    )
    return entry if fields.sound else None


def borrowed_decompositions(entries: Iterable[DecomposeEntry]) -> Table:
    """torch's decompositions of all overloads that the entries name."""
    found = [find_overload(name) for entry in entries for name in entry.aten]
    return get_decompositions([overload for overload in found if overload is not None])


def _overload(fields: Fields, item: Scalar) -> str:
    """The name of an overload, which a name of an op alone is short for; reports (E501, E323,
    W710) what cannot be used."""
    overload = find_overload(item.text)
    if overload is None:
        fields.error(item.span, "E501", f"torch has no op '{item.text}'", _nearest(item.text))
        return item.text
    name = str(overload).removeprefix("aten.")
    why = WRONG.get(name)
    if why is None and torch.Tag.nondeterministic_seeded in overload.tags:
        why = "it draws random numbers, and its decomposition draws others"
    elif overload._schema.is_mutable:
        why = "it writes into its arguments, and graphs hold its functional form"
    if why is not None:
        fields.error(item.span, "E323", f"'{item.text}' is never decomposed: {why}")
    elif not get_decompositions([overload]):
        message = f"this version of torch does not decompose '{item.text}'"
        fields.problems.warning(item.span, "W710", message)
    return name


def _nearest(name: str) -> str | None:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if overload and isinstance(packet, torch._ops.OpOverloadPacket):
        listed: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
        shown = sorted(one for one in listed if not one.endswith("out"))
        return f"'{base}' has: {', '.join(shown)}"
    names = {text.removeprefix("aten::").partition(".")[0] for text in _aten_names()}
    close = did_you_mean(base, sorted(names))
    return f"did you mean '{close}'?" if close else None


def _aten_names() -> Iterable[str]:
    return (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
