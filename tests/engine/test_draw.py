"""Examples cover what rules get wrong: sizes, layouts, dtypes, constants and awkward values."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch

from eqsat.engine.corners import corner_examples, corner_structures
from eqsat.engine.draw import Search, Structure
from eqsat.engine.fill import DRAWN, FILLINGS, LAYOUTS, TensorSpec, draw_values, make_tensor
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.repair import holds_elementwise, keep_to
from eqsat.engine.rule import Rule

TABLE = OpTable(load_book([RULES / "ops"]).ops)
HALF = {torch.float16, torch.bfloat16}


def load_rule(tmp_path: Path, body: str) -> Rule:
    path = tmp_path / "rules.yaml"
    path.write_text("- rule: one-rule\n  doc: A rule for tests.\n" + body)
    return load_book([path], TABLE).rules[0]


def draw(tmp_path: Path, body: str, count: int = 60) -> list[Structure]:
    return Search(load_rule(tmp_path, body), TABLE, Random(0)).collect(count, 4000)


def shape_of(structure: Structure, name: str) -> tuple[int, ...]:
    spec = structure.tensors[name]
    assert isinstance(spec, TensorSpec)
    return spec.shape


POINTWISE = """
  vars:
    x: float[...]
    y: float[...]
  match: add(x, neg(y))
  make: sub(x, y)
  numerics: exact
"""
PRODUCT = """
  vars:
    a: float[m, k]
    b: float[k, n]
  match: permute(mm(a, b), (1, 0))
  when:
    - same_dtype(a, b)
  make: mm(permute(b, (1, 0)), permute(a, (1, 0)))
  numerics: exact
"""
# Eager refuses probabilities that are none.
PROBABILITIES = """
  vars:
    x: float[...]
    y: float[...]
  match: binary_cross_entropy(x, y, None, 0)
  when:
    - same_dtype(x, y)
    - dtype(x) in (f32, f64)
  make: (y - 1.0) * clamp_min(log1p(-x), -100.0) - y * clamp_min(log(x), -100.0)
  numerics: reassociate
  assumes: [0 <= x <= 1, 0 <= y <= 1]
"""
BROADCAST = """
  vars:
    x: float[m, n]
    mask: bool[...a]
    value: const:float
  match: masked_fill(x, mask, value)
  when:
    - broadcasts_to(mask, (m, n))
  make: where(mask, value, x)
  numerics: exact
"""
ORDERED = """
  vars:
    x: float[m, n]
    a: const:int
    b: const:int
    c: const:int
  match: cat(slice(x, 1, a, b), slice(x, 1, b, c), dim=1)
  when:
    - 0 <= a < b
    - b < c <= n
  make: slice(x, 1, a, c)
  numerics: exact
"""
BENT = """
  vars:
    x: float[...]
    low: const:float
  match: threshold(x, low, 0.75)
  when:
    - finite(low)
  make: where(le(x, low), 0.75, x)
  numerics: exact
"""


def test_sizes_are_zero_one_odd_and_equal(tmp_path: Path) -> None:
    structures = draw(tmp_path, PRODUCT)
    shapes = [(*shape_of(s, "a"), shape_of(s, "b")[1]) for s in structures]
    lengths = Counter(length for shape in shapes for length in shape)
    assert lengths[0] >= 3 and lengths[1] >= 10
    assert sum(count for length, count in lengths.items() if length % 2 and length > 1) >= 20
    assert sum(len(set(shape)) == 1 and shape[0] > 1 for shape in shapes) >= 3
    # Most examples tell every dim from every other.
    assert sum(len(set(shape)) == 3 for shape in shapes) >= 20


def test_leading_sizes_have_every_rank(tmp_path: Path) -> None:
    ranks = Counter(len(shape_of(s, "x")) for s in draw(tmp_path, POINTWISE))
    assert set(ranks) == {0, 1, 2, 3} and min(ranks.values()) >= 3


def test_layouts_and_dtypes_are_all_drawn_and_mixed(tmp_path: Path) -> None:
    structures = draw(tmp_path, POINTWISE)
    specs = [s.tensors[name] for s in structures for name in ("x", "y")]
    layouts = Counter(spec.layout for spec in specs if isinstance(spec, TensorSpec))
    assert set(layouts) == set(LAYOUTS) and min(layouts.values()) >= 5
    dtypes = [(s.tensors["x"].dtype, s.tensors["y"].dtype) for s in structures]
    assert {x for x, _ in dtypes} == {torch.float32, torch.float64, *HALF}
    assert sum(x is not y for x, y in dtypes) >= 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_what_it_says(layout: str) -> None:
    tensor = make_tensor(TensorSpec((3, 5), torch.float32, layout), "normal", 1)
    strides = {"contiguous": (5, 1), "transposed": (1, 3), "sliced": (22, 2), "expanded": (0, 1)}
    assert tensor.stride() == strides[layout] and tensor.shape == (3, 5)
    assert tensor.is_contiguous() == (layout == "contiguous")


def test_broadcast_shapes_are_drawn(tmp_path: Path) -> None:
    structures = draw(tmp_path, BROADCAST)
    pairs = [(shape_of(s, "x"), shape_of(s, "mask")) for s in structures]
    assert {len(mask) for _, mask in pairs} == {0, 1, 2}
    assert sum(mask == shape for shape, mask in pairs) >= 5
    stretched = [mask for shape, mask in pairs if len(mask) == 2 and mask != shape]
    assert len(stretched) >= 5
    assert {mask.index(1) for mask in stretched} == {0, 1}


def test_constants_keep_an_order_that_conditions_ask_for(tmp_path: Path) -> None:
    structures = draw(tmp_path, ORDERED)
    assert len(structures) >= 30
    assert len({tuple(s.constants.values()) for s in structures}) >= 15
    assert sum(s.constants["a"] > 0 for s in structures) >= 8


def test_special_values_are_in_every_few_elements() -> None:
    values = draw_values(24, torch.float32, "special", 0)
    assert values.isnan().any() and values.isinf().sum() >= 2
    assert (values == torch.finfo(torch.float32).max).any()
    assert (torch.signbit(values) & (values == 0)).any()
    assert (values.abs() == torch.finfo(torch.float32).tiny).any()
    assert ((values.abs() > 0) & (values.abs() < 3) & (values != 1)).sum() >= 4


def test_assumptions_keep_special_values_away() -> None:
    assumed = ("finite", "no_signed_zero", "no_extremes")
    values = torch.cat([draw_values(24, torch.float32, "special", k, assumed) for k in range(8)])
    assert values.isfinite().all() and values.abs().max() < 100
    assert not (torch.signbit(values) & (values == 0)).any()
    calm = torch.cat([draw_values(24, torch.float16, "huge", k, ["no_overflow"]) for k in range(8)])
    assert calm.abs().max() < 100
    assert not draw_values(99, torch.float32, "special", 1, ["no_nan"]).isnan().any()


def test_awkward_fillings_are_drawn_most() -> None:
    assert set(DRAWN) == set(FILLINGS)
    assert sum(kind in ("special", "marked", "huge") for kind in DRAWN) >= len(DRAWN) // 2


def test_values_lie_on_and_beside_the_numbers_of_a_rule(tmp_path: Path) -> None:
    structure = next(
        s
        for s in draw(tmp_path, BENT)
        if math.prod(shape_of(s, "x")) >= 12 and 0 < abs(s.constants["low"]) < 50
    )
    low = structure.constants["low"]
    values = torch.cat(
        [structure.fill({"x": ("marked", seed)})["x"].double().flatten() for seed in range(8)]
    )
    spec = structure.tensors["x"]
    assert isinstance(spec, TensorSpec)
    eps = torch.finfo(spec.dtype).eps
    exact = float(torch.tensor(low, dtype=spec.dtype))
    assert (values == exact).sum() >= 3
    near = (values - exact).abs() < 0.005 * abs(low) + eps
    assert (near & (values > exact)).any() and (near & (values < exact)).any()
    assert (values == 0.75).any()


def test_a_left_side_that_refuses_values_is_drawn_with_others(tmp_path: Path) -> None:
    structures = draw(tmp_path, PROBABILITIES, count=20)
    assert sum(structure.has_elements for structure in structures) >= 10


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_that_are_drawn_again_keep_the_layout(tmp_path: Path, layout: str) -> None:
    rule = load_rule(tmp_path, PROBABILITIES)
    x = make_tensor(TensorSpec((5, 7), torch.float32, layout), "normal", 0)
    values = {"x": x}
    expr = rule.assumes[0].expr
    assert expr is not None and not bool(holds_elementwise(expr, values).all())
    assert keep_to(rule, expr, values, values, {}, ())
    assert bool(holds_elementwise(expr, values).all())
    assert values["x"].stride() == x.stride()


def test_corners_hold_single_elements_and_pairs_of_empty_sizes(tmp_path: Path) -> None:
    structures = corner_structures(load_rule(tmp_path, PRODUCT), TABLE, Random(0), 60, 20)
    shapes = {(shape_of(one, "a"), shape_of(one, "b")) for one in structures}
    assert ((1, 1), (1, 1)) in shapes
    assert any(a == (0, 0) and b[1] for a, b in shapes)


def test_single_elements_hold_many_pairs_of_special_values(tmp_path: Path) -> None:
    structures = corner_structures(load_rule(tmp_path, PRODUCT), TABLE, Random(0), 60, 20)
    single = next(structure for structure in structures if structure.is_single)
    pairs = set()
    for structure, filling in corner_examples(structures):
        if structure is single and {kind for kind, _ in filling.values()} == {"special"}:
            values = structure.fill(filling)
            pairs.add((str(values["a"].item()), str(values["b"].item())))
    assert len(pairs) >= 6


def test_constants_are_large_together(tmp_path: Path) -> None:
    body = """
  vars:
    x: float[...]
    a: const:float
    b: const:float
  match: x * a * b
  make: x * (a * b)
  numerics: reassociate
"""
    structures = corner_structures(load_rule(tmp_path, body), TABLE, Random(0), 60, 20)
    assert any(one.constants == {"a": 1e30, "b": 1e30} for one in structures)
