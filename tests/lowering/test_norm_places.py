"""Where norms are inf and nan: as in eager, whose kernels per channel fold the scale first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from eqsat.reports import recording

inf, nan = float("inf"), float("nan")
CHANNELS = 6
Tensor = torch.Tensor


def batch_norm(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    return F.batch_norm(x, None, None, w, b, True)


def batch_norm_of_saved(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    mean = torch.linspace(-1, 2, CHANNELS, dtype=x.dtype)
    variance = torch.tensor([0.0, 1.0, inf, nan, 0.5, 2.0], dtype=x.dtype)
    return F.batch_norm(x, mean, variance, w, b, False, eps=0.0)


NORMS: dict[str, Callable[..., Tensor]] = {
    "layer": lambda x, w, b: F.layer_norm(x.mT, (CHANNELS,), w, b),
    "rms": lambda x, w, b: F.rms_norm(x.mT, (CHANNELS,), w),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    "batch": batch_norm,
    "saved": batch_norm_of_saved,
}
ROWS: dict[str, Any] = {
    "weights": ([inf, -inf, nan, 0.0, 1.0, inf], [0.0, 1.0, -1.0, inf, nan, inf]),
    "bias": ([1.0, -2.0, 0.5, inf, inf, 1.0], [inf, -inf, nan, inf, -inf, 0.0]),
    "weights alone": ([inf, -inf, nan, 0.0, -inf, inf], None),
    "bias alone": (None, [inf, -inf, nan, 0.0, 1.0, inf]),
    "nothing": (None, None),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parameters", ROWS)
@pytest.mark.parametrize("name", NORMS)
def test_inf_and_nan_are_where_eager_has_them(
    name: str, parameters: str, dtype: torch.dtype
) -> None:
    norm = NORMS[name]
    w, b = (None if row is None else torch.tensor(row, dtype=dtype) for row in ROWS[parameters])
    plain = torch.randn(3, CHANNELS, 5, dtype=dtype)
    constant = plain.clone()
    constant[:, 1:3] = torch.tensor(1.5, dtype=dtype)
    holed = plain.clone()
    holed[0, 0, 0], holed[1, 4, 1], holed[2, 2, 2] = inf, nan, -inf
    with recording() as reports:
        compiled = torch.compile(norm, backend="eqsat", dynamic=False)
        for x in (plain, constant, holed):
            ours, theirs = compiled(x, w, b), norm(x, w, b)
            tolerance = 2e-5 if dtype is torch.float32 else 2e-2
            torch.testing.assert_close(ours, theirs, equal_nan=True, atol=tolerance, rtol=tolerance)
    assert not [extern for report in reports for extern in report.externs]
