"""Attention as people write it, and programs that only look like it.

Each program is a function and the arguments it is called with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Program = tuple[Callable[..., Any], list[Tensor]]

B, H, S, D = 2, 4, 24, 16
LOWEST = torch.finfo(torch.float32).min
BF16 = torch.bfloat16


def heads(dtype: torch.dtype = torch.float32, groups: int = H, length: int = S) -> list[Tensor]:
    """Queries, keys and values, (batch, heads, length, size)."""
    shapes = (B, H, S, D), (B, groups, length, D), (B, groups, length, D)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def flat(count: int = 3) -> list[Tensor]:
    """The same with batch and heads in one dim."""
    return [torch.randn(B * H, S, D) for _ in range(count)]


def square(count: int = 3) -> list[Tensor]:
    """Heads as long as they are wide, so that a wrong transpose has the right shape."""
    return [torch.randn(B, H, D, D) for _ in range(count)]


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    """A padding mask that is added; every row keeps its first key."""
    hidden = torch.rand(B, 1, 1, S) > 0.7
    hidden[..., 0] = False
    return torch.zeros(B, 1, 1, S, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


def kept() -> Tensor:
    """True where a key may be seen; every row keeps its first key."""
    mask = torch.rand(B, 1, S, S) > 0.3
    mask[..., 0] = True
    return mask


def repeated(x: Tensor, count: int) -> Tensor:
    b, g, s, d = x.shape
    return x[:, :, None].expand(b, g, count, s, d).reshape(b, g * count, s, d)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-1, -2) * 0.25, dim=-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-1, -2) * 0.25 + mask, dim=-1) @ v


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(batch, length, heads, size) in and out."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return plain(q, k, v).transpose(1, 2).reshape(B, S, H * D)


def grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As models of the Llama family write it."""
    scores = q @ repeated(k, 2).transpose(2, 3) * 0.25 + mask
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ repeated(v, 2)


def upcast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As GPT-J writes it: queries and keys in f32."""
    scores = q.float() @ k.float().transpose(-1, -2) / 4.0
    return F.softmax(scores + mask, dim=-1).to(v.dtype) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, low: float) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    return F.softmax(torch.where(keep, scores, low), dim=-1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, drop: Tensor, low: float) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    return F.softmax(scores.masked_fill(drop, low), dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    lower = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return filled(q, k, v, ~lower, -math.inf)


def causal_by_place(q: Tensor, k: Tensor, v: Tensor, window: int = S) -> Tensor:
    """With a window: a query sees its last `window` keys."""
    place = torch.arange(S)
    seen = place[:, None] >= place[None, :]
    return chosen(q, k, v, seen & (place[:, None] - place[None, :] < window), -math.inf)


def with_alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    bias = slopes.view(1, H, 1, 1) * torch.arange(S).view(1, 1, 1, S)
    return masked(q, k, v, bias)


def bloom(q: Tensor, k: Tensor, v: Tensor, alibi: Tensor, mask: Tensor) -> Tensor:
    scores = alibi.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=0.25)
    weights = F.softmax(scores.view(B, H, S, S) + mask, dim=-1)
    return torch.bmm(weights.view(B * H, S, S), v).view(B, H, S, D)


def falcon(q: Tensor, k: Tensor, v: Tensor, alibi: Tensor) -> Tensor:
    return F.softmax((q @ k.transpose(-1, -2) + alibi) * 0.25, dim=-1) @ v


def in_three_dims(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.bmm(q * 0.25, k.transpose(1, 2)) + mask
    return torch.bmm(F.softmax(scores, dim=-1), v)


def fairseq(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(length, batch, heads * size) in and out."""
    q, k, v = (x.view(S, B * H, D).transpose(0, 1) for x in (q, k, v))
    out = torch.bmm(F.softmax(torch.bmm(q * 0.25, k.transpose(1, 2)), dim=-1), v)
    return out.transpose(0, 1).reshape(S, B, H * D)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def normed_and_rotated(q: Tensor, k: Tensor, v: Tensor, angle: Tensor) -> Tensor:
    """qk-norm, then rotary places, then attention over groups."""
    q, k = (F.rms_norm(x, (D,)) for x in (q, k))
    q, k = (rotated(x, angle.cos(), angle.sin()) for x in (q, k))
    return F.softmax(q @ repeated(k, 2).transpose(2, 3) * 0.25, dim=-1) @ repeated(v, 2)


def cached_by_cat(q: Tensor, k: Tensor, v: Tensor, old: Tensor) -> Tensor:
    return plain(q, torch.cat((old, k), dim=2), torch.cat((old, v), dim=2))


def cached_by_copy(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Tensor:
    place = torch.arange(S)
    return plain(q, cache.index_copy(2, place, k), cache.index_copy(2, place, v))


def cached_by_slice(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Tensor:
    return plain(q, *(torch.slice_scatter(cache, x, 2, 0, S) for x in (k, v)))


def spellings() -> Mapping[str, Program]:
    """Programs that are attention; fresh random arguments."""
    low = {"bool": -math.inf, "lowest": LOWEST, "billion": -1e9}
    found: dict[str, Program] = {
        f"{kind.__name__} {name}": (
            lambda q, k, v, m, kind=kind, value=value: kind(q, k, v, m, value),
            [*heads(), kept() if kind is chosen else ~kept()],
        )
        for kind in (chosen, filled)
        for name, value in low.items()
    }
    by_hand = {
        "scale on queries": lambda q, k, v: F.softmax((q * 0.3) @ k.mT, dim=-1) @ v,
        "divisor on queries": lambda q, k, v: F.softmax((q / 1.7) @ k.mT, dim=-1) @ v,
        "root on both": lambda q, k, v: F.softmax((q * 0.5) @ (k * 0.5).mT, dim=-1) @ v,
        "root over both": lambda q, k, v: F.softmax((q / 1.7) @ (k / 1.7).mT, dim=-1) @ v,
        "divisor, an integer": lambda q, k, v: F.softmax(q @ k.mT / 4, dim=-1) @ v,
        "no scale": lambda q, k, v: F.softmax(q @ k.permute(0, 1, 3, 2), dim=-1) @ v,
        "dropout off": lambda q, k, v: F.dropout(F.softmax(q @ k.mT, -1), 0.1, False) @ v,
        "dropout of nothing": lambda q, k, v: F.dropout(F.softmax(q @ k.mT, -1), 0.0) @ v,
        "causal": causal,
        "causal by place": causal_by_place,
        "window": lambda q, k, v: causal_by_place(q, k, v, 5),
    }
    found |= {name: (program, heads()) for name, program in by_hand.items()}
    found |= {
        "turned": (turned, [torch.randn(B, S, H, D) for _ in range(3)]),
        "mask": (masked, [*heads(), rows()]),
        "mask of two dims": (masked, [*heads(), torch.randn(S, S)]),
        "mask of three dims": (masked, [*heads(), torch.randn(H, 1, S)]),
        "two masks": (
            lambda q, k, v, m, n: F.softmax(q @ k.mT * 0.25 + m + n, dim=-1) @ v,
            [*heads(), torch.randn(1, H, S, S), rows()],
        ),
        "float mask of zeros and ones": (
            lambda q, k, v, m: masked(q, k, v, (1.0 - m[:, None, None]) * -1e4),
            [*heads(), (torch.rand(B, S) > 0.3).float()],
        ),
        "clamped": (
            lambda q, k, v, m: (
                F.softmax(torch.maximum(q @ k.mT * 0.25 + m, torch.full((), LOWEST)), dim=-1) @ v
            ),
            [*heads(), rows()],
        ),
        "alibi": (with_alibi, [*heads(), torch.rand(H)]),
        "falcon": (falcon, [*heads(), torch.randn(B, H, 1, S)]),
        "bloom": (bloom, [*flat(), torch.randn(B * H, 1, S), rows()]),
        "temperature per head": (
            lambda q, k, v, t: F.softmax(q @ k.mT * t.exp(), dim=-1) @ v,
            [*heads(), torch.randn(H, 1, 1)],
        ),
        "three dims": (plain, flat()),
        "three dims with a mask": (in_three_dims, [*flat(), torch.randn(B * H, 1, S)]),
        "fairseq": (fairseq, [torch.randn(S, B, H * D) for _ in range(3)]),
        "groups": (grouped, [*heads(groups=2), rows()]),
        "groups in halves": (grouped, [*heads(BF16, groups=2), rows(BF16)]),
        "f32 mask": (
            lambda q, k, v, m: F.softmax(q @ k.mT * 0.25 + m, dim=-1).to(v.dtype) @ v,
            [*heads(BF16), rows()],
        ),
        "upcast": (upcast, [*heads(BF16), rows()]),
        "cross attention": (plain, heads(length=9)),
        "keys that come transposed": (lambda q, k, v: F.softmax(q @ k, dim=-1) @ v, square()),
        "scaled weights": (lambda q, k, v: (F.softmax(q @ k.mT, dim=-1) * 0.5) @ v, heads()),
        "normed and rotated": (normed_and_rotated, [*heads(groups=2), torch.randn(S, D)]),
        "cache by cat": (cached_by_cat, [*heads(), torch.randn(B, H, 6, D)]),
        "cache by copy": (cached_by_copy, [*heads(), torch.randn(B, H, S + 8, D)]),
        "cache by slice": (cached_by_slice, [*heads(), torch.randn(B, H, S + 8, D)]),
    }
    return found


def softcapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(torch.tanh(q @ k.mT * 0.25) * 5.0, dim=-1) @ v


def weights_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = F.softmax(q @ k.mT * 0.25, dim=-1)
    return weights @ v, weights


def near_misses() -> Mapping[str, Program]:
    """Programs that no single call of attention computes."""
    return {
        "softmax over queries": (lambda q, k, v: F.softmax(q @ k.mT, dim=-2) @ v, heads()),
        "softmax over heads": (lambda q, k, v: F.softmax(q @ k.mT, dim=1) @ v, heads()),
        "scale per key": (
            lambda q, k, v, t: F.softmax(q @ k.mT * t, dim=-1) @ v,
            [*heads(), torch.rand(1, 1, 1, S)],
        ),
        "transpose of the wrong operand": (
            lambda q, k, v: F.softmax((q @ k.mT).mT, dim=-1) @ v,
            heads(),
        ),
        "mask behind": (
            lambda q, k, v, m: (F.softmax(q @ k.mT, dim=-1) + m) @ v,
            [*heads(), torch.randn(S, S)],
        ),
        "mask times scores": (
            lambda q, k, v, m: F.softmax(q @ k.mT * m, dim=-1) @ v,
            [*heads(), torch.rand(B, 1, S, S)],
        ),
        "fill that is not low": (
            lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(m, -1.0), dim=-1) @ v,
            [*heads(), kept()],
        ),
        "softcap": (softcapped, heads()),
        "sigmoid": (lambda q, k, v: torch.sigmoid(q @ k.mT) @ v, heads()),
        "doubles": (plain, heads(torch.float64)),
        "weights are read": (weights_too, heads()),
        "mask adds a batch": (
            lambda q, k, v, m: F.softmax(q @ k.mT + m, dim=-1) @ v,
            [*(x[:1] for x in heads()), torch.randn(B, 1, S, S)],
        ),
    }
