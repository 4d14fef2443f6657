"""Tensors from nothing: constants, ranges, and random numbers."""

from __future__ import annotations

from ..draw import Draw
from .table import kind


@kind(4)
def constant(d: Draw) -> str:
    x = d.any()
    shape, dtype = d.shape(x), d.dtype()
    return f"{d.new()} = " + d.choice(
        f"torch.ones({shape}, dtype={dtype})",
        f"torch.zeros({shape}, dtype={dtype})",
        f"torch.full({shape}, {d.choice('2.5', '3', '-1')})",
        f"torch.full_like({x}, 2)",
        f"torch.ones_like({x})",
        f"torch.zeros_like({x})",
        f"{x}.new_zeros({shape})",
        f"{x}.new_ones(3)",
        f"{x}.new_full((2, 1), 1.5)",
    )


@kind(4)
def single(d: Draw) -> str:
    return f"{d.new()} = torch.tensor({d.choice('2.5', '3', 'True', '-0.0', '[1.5, 2.0, -1.0]')})"


@kind(4)
def range_of(d: Draw) -> str:
    x = d.any(dims=1)
    size = d.size(x, d.dim(x))
    return f"{d.new()} = " + d.choice(
        f"torch.arange({size})",
        f"torch.arange({size}, dtype=torch.float32)",
        f"torch.arange(1, {size} + 1)",
        f"torch.arange(0, {size} * 2, 2)",
        f"torch.arange({size} - 1, -1, -1)",
        f"torch.linspace(-1, 1, {size})",
        f"torch.eye({size})",
        "torch.arange(0, 1, 0.25)",
    )


@kind(2)
def triangle_of_ones(d: Draw) -> str:
    x = d.any(dims=2)
    size = d.size(x, -1)
    name = d.choice("tril", "triu")
    return f"{d.new()} = torch.{name}(torch.ones({size}, {size}, dtype=torch.bool))"


@kind(5)
def random_numbers(d: Draw) -> str:
    x = d.any()
    return f"{d.new()} = " + d.choice(
        f"torch.rand({d.shape(x)})",
        f"torch.randn({d.shape(x)})",
        f"torch.randint(0, 5, {d.shape(x)})",
        f"torch.rand({d.shape(x)}, dtype=torch.float64)",
    )


@kind(3)
def random_like(d: Draw) -> str:
    x = d.float()
    return f"{d.new()} = " + d.choice(
        f"torch.rand_like({x})",
        f"torch.randn_like({x})",
        f"torch.bernoulli(torch.sigmoid({x}))",
        f"torch.randint_like({x}, 3)",
    )


@kind(3)
def dropout(d: Draw) -> str:
    rate, training = d.choice("0.5", "0.1", "0.9", "0"), d.choice("True", "True", "False")
    return f"{d.new()} = F.dropout({d.float()}, {rate}, training={training})"


@kind(2)
def random_order(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()} = torch.randperm({d.size(x, d.dim(x))})"


@kind(2)
def random_in_place(d: Draw) -> str:
    x, new = d.float(), d.new()
    call = d.choice("uniform_()", "normal_()", "bernoulli_(0.3)", "uniform_(-1, 2)")
    return f"{new} = torch.empty_like({x}).{call}"
