"""What rewrites gain on an H200, measured, against what the cost model says of them.

    python -m benchmarks.gains [--json]

`TABLE` holds gains (GPU-busy time before the rewrite over that after it, half types, TorchInductor
compiles both). The sizes that were not noted when it was measured are inferred from the models
that the programs come from. A gain of 0.95 to 1.05 counts as equal: either choice is right then.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.cost import CostModel
from eqsat.engine.encode import encode
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.target import load_target
from eqsat.lowering.lower import lowered_ops

Program = Callable[..., Any]
EQUAL = (0.95, 1.05)
ACTIVATIONS = ("x", "h")  # every other input is a parameter


@dataclass(frozen=True)
class Row:
    """`shapes` are those of the inputs of both programs; `frozen`: parameters may be folded."""

    family: str
    size: str
    gain: float
    before: Program
    after: Program
    shapes: Mapping[str, Sequence[int]]
    frozen: bool = True
    dtype: torch.dtype = field(default=torch.bfloat16)


def qkv(x, wq, wk, wv):  # type: ignore[no-untyped-def]
    return x @ wq, x @ wk, x @ wv


def qkv_wide(x, wq, wk, wv):  # type: ignore[no-untyped-def]
    return (x @ torch.cat([wq, wk, wv], 1)).split([wq.shape[1], wk.shape[1], wv.shape[1]], 1)


def gated(x, wg, wu):  # type: ignore[no-untyped-def]
    return F.silu(x @ wg) * (x @ wu)


def gated_wide(x, wg, wu):  # type: ignore[no-untyped-def]
    gate, up = (x @ torch.cat([wg, wu], 1)).split([wg.shape[1], wu.shape[1]], 1)
    return F.silu(gate) * up


def adapted(x, w, a, b):  # type: ignore[no-untyped-def]
    return x @ w + (x @ a) @ b


def adapted_weight(x, w, a, b):  # type: ignore[no-untyped-def]
    return x @ (w + a @ b)


def normed(x):  # type: ignore[no-untyped-def]
    wide = x.float()
    return wide, torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)


def norm_gain(x, g, w):  # type: ignore[no-untyped-def]
    wide, scale = normed(x)
    return ((wide * scale).to(x.dtype) * g) @ w


def norm_gain_folded(x, g, w):  # type: ignore[no-untyped-def]
    wide, scale = normed(x)
    return (wide * scale).to(x.dtype) @ (g[:, None] * w)


def norm_before(x, w):  # type: ignore[no-untyped-def]
    wide, scale = normed(x)
    return (wide * scale).to(x.dtype) @ w


def norm_behind(x, w):  # type: ignore[no-untyped-def]
    _, scale = normed(x)
    return ((x @ w) * scale).to(x.dtype)


def conv_norm(x, w, g, b, mean, spread):  # type: ignore[no-untyped-def]
    y = F.conv2d(x, w, padding=1).float()
    scale = torch.rsqrt(spread + 1e-5) * g
    y = (y - mean[:, None, None]) * scale[:, None, None] + b[:, None, None]
    return F.relu(y.to(x.dtype))


def conv_folded(x, w, g, b, mean, spread):  # type: ignore[no-untyped-def]
    scale = torch.rsqrt(spread + 1e-5) * g
    return F.relu(F.conv2d(x, w * scale[:, None, None, None], b - mean * scale, padding=1))


def left_first(a, b, x):  # type: ignore[no-untyped-def]
    return (a @ b) @ x


def right_first(a, b, x):  # type: ignore[no-untyped-def]
    return a @ (b @ x)


def branches(x, wa, wb, wc):  # type: ignore[no-untyped-def]
    return F.conv2d(x, wa), F.conv2d(x, wb), F.conv2d(x, wc)


def one_branch(x, wa, wb, wc):  # type: ignore[no-untyped-def]
    wide = F.conv2d(x, torch.cat([wa, wb, wc]))
    return wide.split([wa.shape[0], wb.shape[0], wc.shape[0]], 1)


def fire(x, w1, w3):  # type: ignore[no-untyped-def]
    return F.relu(torch.cat([F.conv2d(x, w1), F.conv2d(x, w3, padding=1)], 1))


def fire_padded(x, w1, w3):  # type: ignore[no-untyped-def]
    return F.relu(F.conv2d(x, torch.cat([F.pad(w1, (1, 1, 1, 1)), w3]), padding=1))


def transposed(x, h):  # type: ignore[no-untyped-def]
    return (x.t().contiguous() @ h.t().contiguous()).t().contiguous()


def not_transposed(x, h):  # type: ignore[no-untyped-def]
    return h @ x


def wide_product(x, w):  # type: ignore[no-untyped-def]
    return (x.float() @ w.float()).to(x.dtype)


def half_product(x, w):  # type: ignore[no-untyped-def]
    return x @ w


def two_terms(x, a, b):  # type: ignore[no-untyped-def]
    return x @ a + x @ b


def common_factor(x, a, b):  # type: ignore[no-untyped-def]
    return x @ (a + b)


def mean_after(x, w, b):  # type: ignore[no-untyped-def]
    return F.linear(x, w, b).mean(1)


def mean_before(x, w, b):  # type: ignore[no-untyped-def]
    return F.linear(x.mean(1), w, b)


def two_layers(x, a, b):  # type: ignore[no-untyped-def]
    return (x @ a) @ b


def one_layer(x, a, b):  # type: ignore[no-untyped-def]
    return x @ (a @ b)


def _cell(left, right):  # type: ignore[no-untyped-def]
    """Eight gates of a searched cell, each of a product of x and one of h."""
    gates = [torch.sigmoid(a) * torch.tanh(b) for a, b in zip(left, right, strict=True)]
    return sum(gates[1:], gates[0])


def cell(x, h, *weights):  # type: ignore[no-untyped-def]
    return _cell([x @ w for w in weights[:8]], [h @ w for w in weights[8:]])


def cell_merged(x, h, *weights):  # type: ignore[no-untyped-def]
    wide = [x @ torch.cat(weights[:8], 1), h @ torch.cat(weights[8:], 1)]
    return _cell(wide[0].chunk(8, 1), wide[1].chunk(8, 1))


def sum_of_products(x, h, a, b):  # type: ignore[no-untyped-def]
    return x @ a + h @ b


def product_of_cats(x, h, a, b):  # type: ignore[no-untyped-def]
    return torch.cat([x, h], 1) @ torch.cat([a, b])


Sized = tuple[str, float, list[tuple[int, ...]]]  # the row's name, its gain, shapes in order


def _family(
    family: str, before: Program, after: Program, sizes: Sequence[Sized], **how: Any
) -> Iterator[Row]:
    """One row per size. Shapes past the named arguments are w0, w1, ..."""
    names = before.__code__.co_varnames[: before.__code__.co_argcount]
    for size, gain, shapes in sizes:
        named = dict(zip(names, shapes, strict=False))
        named |= {f"w{at}": shape for at, shape in enumerate(shapes[len(names) :])}
        yield Row(family, size, gain, before, after, named, **how)


def _token_rows() -> Iterator[Row]:
    """Products of rows of tokens and weights."""
    square, low = (4096, 4096), ((4096, 16), (16, 4096))
    tokens = ((1, 1.80), (16, 1.76), (512, 1.26), (8192, 1.02))
    sizes = [(f"{m} tokens", gain, [(m, 4096), *[square] * 3]) for m, gain in tokens]
    sizes += [("small widths", 2.16, [(16, 256), *[(256, 256)] * 3])]
    yield from _family("q/k/v merge", qkv, qkv_wide, sizes)
    tokens = ((1, 1.15), (16, 1.09), (512, 1.03), (8192, 0.93))
    sizes = [(f"{m} tokens", gain, [(m, 4096), *[(4096, 14336)] * 2]) for m, gain in tokens]
    yield from _family("gate/up merge", gated, gated_wide, sizes)
    sizes = [
        (f"{m} tokens", gain, [(m, 4096), square, *low])
        for m, gain in ((1, 1.90), (512, 1.64), (8192, 1.29))
    ]
    yield from _family("LoRA folded", adapted, adapted_weight, sizes)
    sizes = [
        (f"{m} tokens", gain, [(m, 4096), square, *low]) for m, gain in ((512, 1.57), (8192, 0.85))
    ]
    yield from _family("LoRA re-associated", adapted_weight, adapted, sizes, frozen=False)
    sizes = [("512 tokens", 1.00, [(512, 4096), (4096,), square])]
    yield from _family("norm gain folded", norm_gain, norm_gain_folded, sizes)
    sizes = [(f"{m} tokens", gain, [(m, 4096), square]) for m, gain in ((512, 1.00), (8192, 0.97))]
    yield from _family("norm scale behind the product", norm_before, norm_behind, sizes)


def _convolution_rows() -> Iterator[Row]:
    sizes = [
        (f"c{c}", gain, [(64, c, side, side), (c, c, 3, 3), *[(c,)] * 4])
        for c, gain, side in ((256, 1.07, 14), (64, 1.15, 56))
    ]
    yield from _family("conv + bn", conv_norm, conv_folded, sizes, dtype=torch.float16)
    sizes = [
        (f"batch {n}", gain, [(n, 192, 28, 28), *[(c, 192, 1, 1) for c in (64, 96, 16)]])
        for n, gain in ((1, 1.90), (64, 1.10))
    ]
    yield from _family("Inception 1x1", branches, one_branch, sizes, dtype=torch.float16)
    sizes = [
        (f"batch {n}", gain, [(n, 16, 55, 55), (64, 16, 1, 1), (64, 16, 3, 3)])
        for n, gain in ((1, 1.36), (64, 1.09))
    ]
    yield from _family("Fire expand", fire, fire_padded, sizes, dtype=torch.float16)


def _product_rows() -> Iterator[Row]:
    """Orders, layouts and sums of products."""
    square = (4096, 4096)
    sizes = [
        ("vector", 8.1, [square, square, (4096, 1)]),
        ("16 columns", 7.2, [square, square, (4096, 16)]),
    ]
    yield from _family("matmul order", left_first, right_first, sizes, frozen=False)
    yield from _family("transposes", transposed, not_transposed, [("4096", 1.14, [square, square])])
    sizes = [("512 tokens", 2.17, [(512, 4096), square])]
    yield from _family("casts", wide_product, half_product, sizes, frozen=False)
    sizes = [("512 tokens", 2.10, [(512, 4096), square, square])]
    yield from _family("common factor", two_terms, common_factor, sizes)
    sizes = [("32 x 512 tokens", 13.3, [(32, 512, 1024), (4096, 1024), (4096,)])]
    yield from _family("mean after linear", mean_after, mean_before, sizes)
    sizes = [
        (f"{m} tokens", gain, [(m, 2048), (2048, 4096), (4096, 2048)])
        for m, gain in ((512, 1.66), (8192, 3.66))
    ]
    yield from _family("linear after linear", two_layers, one_layer, sizes)
    sizes = [("16 rows", 5.4, [(16, 512), (16, 512), *[(512, 512)] * 16])]
    yield from _family("NAS cell", cell, cell_merged, sizes)
    sizes = [
        (f"{m} tokens", gain, [(m, 1024), (m, 1024), (1024, 4096), (1024, 4096)])
        for m, gain in ((1, 1.03), (64, 1.16), (8192, 0.99))
    ]
    yield from _family("sum of products", sum_of_products, product_of_cats, sizes)


TABLE: Sequence[Row] = (*_token_rows(), *_product_rows(), *_convolution_rows())


@dataclass(frozen=True)
class Prediction:
    """Seconds that the model gives the two programs of a row."""

    row: Row
    before: float
    after: float

    @property
    def gain(self) -> float:
        return self.before / self.after

    @property
    def agrees(self) -> bool:
        """Whether the model chooses what was measured to be faster, or either where equal."""
        low, high = EQUAL
        return low <= self.row.gain <= high or (self.gain > 1) == (self.row.gain > 1)


def predict(row: Row, target: str = "h200") -> Prediction:
    """What the model says of both programs on a target."""
    table = OpTable(builtin_book().ops)
    model = CostModel(load_target(target), lowered_ops(table))
    return Prediction(
        row, *(_seconds(program, row, model, table) for program in (row.before, row.after))
    )


def _seconds(program: Program, row: Row, model: CostModel, table: OpTable) -> float:
    with FakeTensorMode():
        inputs = [torch.empty(tuple(shape), dtype=row.dtype) for shape in row.shapes.values()]
        gm = make_fx(program)(*inputs)
    placeholders = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    named = zip(placeholders, row.shapes, strict=True)
    frozen = frozenset(node for node, name in named if name not in ACTIVATIONS)
    encoding = encode(
        gm,
        table,
        weights={name: at for at, name in enumerate(placeholders) if name in frozen},
        frozen=frozen if row.frozen else frozenset(),
    )
    assert encoding is not None
    graph = encoding.graph
    model.survey(graph, [encoding.classes[node] for node in encoding.roots])
    return sum(model.cost(graph, node) for node in range(len(graph))) / 1e15


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON per row")
    arguments = parser.parse_args()
    found = [predict(row) for row in TABLE]
    for one in found:
        values = {
            "family": one.row.family,
            "size": one.row.size,
            "measured": one.row.gain,
            "predicted": round(one.gain, 2),
            "before_us": round(one.before * 1e6, 1),
            "after_us": round(one.after * 1e6, 1),
            "agrees": one.agrees,
        }
        if arguments.json:
            print(json.dumps(values))
        else:
            family, size, gain, predicted, *rest, agrees = values.values()
            mark = "" if agrees else "  <- differs"
            times = "{:9.1f} -> {:9.1f} us".format(*rest)
            print(f"{family:32}{size:16}{gain:6} measured{predicted:7} predicted{times}{mark}")
    count = sum(one.agrees for one in found)
    print(f"{count} of {len(found)} rows agree ({100 * count / len(found):.0f}%)")


if __name__ == "__main__":
    main()
