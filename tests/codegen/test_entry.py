"""The text of entries and kernels: what is shared, what is named, what is a comment."""

from __future__ import annotations

from typing import Any

import sympy

from eqsat.codegen import kernels
from eqsat.codegen.compile import compile_program
from eqsat.codegen.cpp import emit_nest
from eqsat.codegen.kernels import KERNELS_PER_UNIT, Kernel, emit_kernels, make_units
from eqsat.codegen.numbers import Numbers
from eqsat.codegen.structure import structure


def layers(make: Any, count: int) -> Any:
    buffers = [make.buffer(f"t{i}", 5, role="temp") for i in range(count + 1)]
    x = make.buffer("x", 5, role="input")
    nests = [make.nest("add", buffers[i + 1], buffers[i] if i else x, 1.0) for i in range(count)]
    return make.program(["x"], [x, *buffers[1:]], nests, [make.view(buffers[count])])


def test_equal_kernels_are_compiled_once(make: Any, table: Any) -> None:
    program = layers(make, 12)
    graph = compile_program(program, table)
    (kernel,) = graph.kernels
    assert kernel.uses == 12 and len(kernel.origins) == 12
    assert kernel.rules == ("rules/demo.yaml:3 add",)
    assert graph.source.count(f"  {kernel.name}(p[") == 12
    assert "// nodes: add_t1, add_t2" in graph.source
    assert "// rule: rules/demo.yaml:3 add" in graph.source


def test_names_come_from_the_text_alone(make: Any, table: Any) -> None:
    a = layers(make, 1)
    b = layers(make, 2)
    first, _ = emit_kernels(a.steps, a.buffers, table)
    second, _ = emit_kernels(b.steps[1:], b.buffers, table)
    assert first[0].name == second[0].name
    assert first[0].name.startswith("k_") and first[0].name.endswith("_add")
    assert first[0].origins != second[0].origins


def test_comments_are_no_part_of_the_compiled_text() -> None:
    plain = Kernel("k_1_add", "void k_1_add() {}", ("a",), ())
    other = Kernel("k_1_add", "void k_1_add() {}", ("b\n#error \\",), ("r.yaml:1 r",), 3)
    (first,), (second,) = make_units([plain], 1), make_units([other], 1)
    assert first.text == second.text and first.shown != second.shown
    for line in second.shown.splitlines():
        assert "#error" not in line or line.startswith("//")
        assert not line.endswith("\\")


def test_units_follow_the_number_of_cores() -> None:
    many = [Kernel(f"k_{i:03}", "", (), ()) for i in range(2 * KERNELS_PER_UNIT + 1)]
    assert len(make_units(many, 8)) == 3
    assert len(make_units(many, 2)) == 2
    assert make_units(many, 2) == make_units(many[::-1], 2)
    assert make_units([], 2) == []


def test_numbers_share_runs_and_stay_exact() -> None:
    s, t = sympy.symbols("s t", integer=True, positive=True)
    numbers = Numbers()
    assert numbers.run((4, 5)) == numbers.run((4, sympy.Integer(5)))
    sizes = [s * t, s + 2 * t, (s * t) / 2, sympy.Max(s, t), s**2, sympy.floor(s / t), -s]
    places = [numbers.add(size) for size in sizes]
    evaluate = numbers.function(["s", "t"])
    large = 2**40 + 2
    table = evaluate(large, 3)
    expected = [large * 3, large + 6, large * 3 // 2, large, large**2, large // 3, -large]
    assert [table[place] for place in places] == expected


def test_alike_nests_are_emitted_once(make: Any, table: Any, monkeypatch: Any) -> None:
    program = layers(make, 12)
    whole, uses = emit_kernels(program.steps, program.buffers, table)
    emitted: list[str] = []

    def counting(nest: Any, *rest: Any) -> Any:
        emitted.append(nest.name)
        return emit_nest(nest, *rest)

    monkeypatch.setattr(kernels, "emit_nest", counting)
    again, same = emit_kernels(program.steps, program.buffers, table)
    assert again == whole and same == uses and emitted == ["add_t1"]
    assert [set(use.buffers) for use in uses[:2]] == [{"x", "t1"}, {"t1", "t2"}]


def test_structure_tells_layouts_and_constants_apart(make: Any) -> None:
    def key(constant: float, **layout: Any) -> Any:
        x, y = make.buffer("x", 4, 4, **layout), make.buffer("y", 4, 4)
        return structure(make.nest("add", y, x, constant), {"x": x, "y": y})[0]

    assert key(0.0) == key(0.0)
    assert len({key(0.0), key(-0.0), key(1.0), key(0.0, dtype="f64")}) == 4
    assert key(0.0) != key(0.0, stride=(1, 4))
    x = make.buffer("x", 4, 4)
    y = make.buffer("y", 4, 4)
    in_place = structure(make.nest("add", x, x, y), {"x": x, "y": y})[0]
    assert in_place != structure(make.nest("add", y, x, y), {"x": x, "y": y})[0]
