"""Samples of torch's op database: which there are, and calls of them.

Takes names or globs of ops and dtypes; gives `Sample`s, the same ones on every machine. Needs
the `opdb` extra.
"""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from .opdb_measure import SEED, Sample


def name_of(op: Any) -> str:
    return str(op.full_name)


def find_ops(patterns: Sequence[str], dtypes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The ops that fit, each with those of `dtypes` that it takes on the CPU."""
    found = {}
    for op in op_db:
        name = name_of(op)
        if patterns and not any(fnmatch.fnmatch(name, one) for one in patterns):
            continue
        takes = op.supported_dtypes("cpu")
        able = tuple(dtype for dtype in dtypes if getattr(torch, dtype) in takes)
        if able:
            found[name] = able
    return found


def make_samples(name: str, dtype: str, most: int) -> list[Sample]:
    """At most `most` samples, spread over all that the database has."""
    (op,) = (one for one in op_db if name_of(one) == name)
    torch.manual_seed(SEED)
    random.seed(SEED)
    found = list(op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False))
    step = max(1, -(-len(found) // most))
    return [_sample(dtype, number, op.op, one) for number, one in enumerate(found[::step])]


def _sample(dtype: str, number: int, call: Callable[..., Any], given: Any) -> Sample:
    leaves, spec = pytree.tree_flatten(((given.input, *given.args), given.kwargs))
    places = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    tensors = tuple(leaves[place] for place in places)
    kept = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Sample(dtype, number, call, tensors, kept, places, spec)


def open_to_tracing() -> None:
    """The database saves and restores the state of random numbers around some ops, which
    Dynamo does not trace; here every run is seeded as a whole."""
    vars(common_methods_invocations)["wrapper_set_seed"] = _call_plainly


def _call_plainly(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)
