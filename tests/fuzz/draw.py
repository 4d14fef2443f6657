"""A program while it is drawn: its variables have values, one set per call, so that only
statements that run, with values that are tame, come into it.

Kinds of ops (`kinds/`) are functions over a `Draw` that give the text of a statement, or None
(or raise `NoFit`) where the variables at hand do not suit them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Test = Callable[[torch.Tensor], bool]
Kind = Callable[["Draw"], "str | None"]

LARGEST = 4096  # elements of an intermediate
FLOAT_LIMIT, HALF_LIMIT = 1e4, 1e3
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class NoFit(Exception):
    """No variable suits the kind of op that was asked for."""


class Draw:
    """`envs` holds the variables of each call; kinds look at the first."""

    def __init__(self, rng: random.Random, dynamic: bool, wild: bool) -> None:
        self.rng = rng
        self.dynamic = dynamic
        self.wild = wild  # nan, inf and large numbers are welcome
        self.envs: list[dict[str, Any]] = []
        self.order: list[str] = []  # tensors, as they came
        self._count = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        value: torch.Tensor = self.envs[0][name]
        return value

    def chance(self, part: float) -> bool:
        return self.rng.random() < part

    def new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    # Variables.

    def pick(self, test: Test | None = None, recent: bool = True) -> str:
        """A tensor that passes `test`, rather a late one."""
        fitting = [name for name in self.order if test is None or test(self[name])]
        if not fitting:
            raise NoFit
        if recent and self.chance(0.7):
            return self.rng.choice(fitting[-4:])
        return self.rng.choice(fitting)

    def float(self, *, dims: int = 0, most: int = 9, wide: bool = False) -> str:
        """A float tensor of `dims` to `most` dims; `wide` leaves the half types out."""
        dtypes = FLOATS[:2] if wide else FLOATS
        return self.pick(lambda x: x.dtype in dtypes and dims <= x.dim() <= most)

    def integer(self, dims: int = 0) -> str:
        return self.pick(lambda x: x.dtype in INTS and x.dim() >= dims)

    def boolean(self, like: str | None = None) -> str:
        """A mask; one that broadcasts to `like`, made of it where there is none."""
        return self.pick(
            lambda x: x.dtype == torch.bool and (like is None or broadcasts(x, self[like], True))
        )

    def any(self, dims: int = 0) -> str:
        return self.pick(lambda x: x.dim() >= dims)

    def partner(self, name: str, same_dtype: bool = False, test: Test | None = None) -> str:
        """A tensor that broadcasts with `name`, which may be the same one."""
        one = self[name]
        kind = one.dtype.is_floating_point

        def fits(other: torch.Tensor) -> bool:
            alike = other.dtype == one.dtype if same_dtype else True
            near = other.dtype.is_floating_point == kind or self.chance(0.2)
            return alike and near and broadcasts(other, one) and (test is None or test(other))

        return self.pick(fits, recent=False)

    # Pieces of text.

    def dim(self, name: str) -> int:
        """A dim of the tensor, counted from either end."""
        rank = self[name].dim()
        if not rank:
            raise NoFit
        return self.rng.randrange(-rank, rank)

    def size(self, name: str, dim: int) -> str:
        """The length of a dim: a number, or where sizes may change an expression."""
        if self.dynamic or self.chance(0.15):
            return f"{name}.shape[{dim}]"
        return str(self[name].shape[dim])

    def shape(self, name: str) -> str:
        if self.dynamic or self.chance(0.15):
            return f"{name}.shape"
        return str(tuple(self[name].shape))

    def number(self) -> str:
        return self.rng.choice(
            ["0.5", "2", "-1", "1.5", "-0.25", "3", "1", "0", "0.1", "True", "-2.0", "7"]
        )

    def choice(self, *texts: str) -> str:
        return self.rng.choice(texts)

    def dtype(self) -> str:
        weights = (30, 10, 12, 14, 8, 8, 3, 3, 4, 8)
        return str(self.rng.choices([*FLOATS, *INTS, torch.bool], weights)[0])

    # Running.

    def attempt(self, text: str) -> bool:
        """Run a statement in every call; True where it did, and left values that will do."""
        for env in self.envs:
            before = set(env)
            try:
                exec(text, env)
            except Exception:
                self._forget(before)
                return False
            if not self._tame(env):
                self._forget(before)
                return False
        first = self.envs[0]
        known = set(self.order)
        self.order += [name for name in first if name not in known and _is_tensor(first[name])]
        return True

    def _forget(self, kept: set[str]) -> None:
        for env in self.envs:
            for name in set(env) - kept:
                del env[name]

    def _tame(self, env: dict[str, Any]) -> bool:
        for value in env.values():
            if not _is_tensor(value):
                continue
            if value.numel() > LARGEST or value.dim() > 5 or value.is_complex():
                return False
            if self.wild or not value.is_floating_point() or not value.numel():
                continue
            limit = FLOAT_LIMIT if value.dtype.itemsize >= 4 else HALF_LIMIT
            if not float(value.detach().abs().max()) <= limit:  # nor nan
                return False
        return True


def new_env() -> dict[str, Any]:
    """The names that programs use."""
    return {"torch": torch, "F": functional}


def broadcasts(one: torch.Tensor, other: torch.Tensor, within: bool = False) -> bool:
    """Whether the shapes go together; `within`: to that of `other`."""
    try:
        shape = torch.broadcast_shapes(one.shape, other.shape)
    except RuntimeError:
        return False
    return not within or shape == other.shape


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
