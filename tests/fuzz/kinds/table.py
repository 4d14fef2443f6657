"""The table of kinds of ops, which the modules beside this one fill when they are imported."""

from __future__ import annotations

from collections.abc import Callable

from ..draw import Kind

KINDS: dict[str, Kind] = {}
WEIGHTS: dict[str, int] = {}


def kind(weight: int = 4) -> Callable[[Kind], Kind]:
    """Enter a function under its name; kinds come as often as they weigh."""

    def enter(function: Kind) -> Kind:
        name = function.__name__
        assert name not in KINDS
        KINDS[name] = function
        WEIGHTS[name] = weight
        return function

    return enter
