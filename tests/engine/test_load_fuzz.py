"""Damaged rule files: the loader answers each with messages, never with a traceback; and what it
accepts never breaks a graph.

The graph of a rule is its own left side, on sizes and types for which the rule fires.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from eqsat.engine.binding import Failure, bind_types
from eqsat.engine.draw import TORCH_ERRORS, Search
from eqsat.engine.evaluate import TensorWorld, evaluate
from eqsat.engine.load import RULES, builtin_book, load_book
from eqsat.engine.op import Op
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import Rule, RuleBook
from eqsat.engine.schedule import load_schedule
from eqsat.engine.source import RuleErrors
from eqsat.engine.stage import StageWarning, run_stage
from eqsat.engine.target import load_target
from eqsat.engine.trace import decomposition_table
from eqsat.engine.world import EvaluateError
from eqsat.tests.engine.damage import DAMAGES, entries

TABLE = OpTable(builtin_book().ops)
# Calls whose kernels trust the sizes they are given, or ask for more than their fake twins.
TRUSTING = ("_norm", "embedding", "scatter", "scaled_dot_product")
RULES_SHARE = 0.8  # the rest is drawn from entries of any kind
ATTEMPTS = 60  # draws of sizes and types before a rule counts as one that never fires
# What torch says on values of its own accord, whatever the compiler did: places outside a tensor,
# and sizes that no machine holds.
OF_THE_VALUES = ("out of bounds", "out of range", "can't allocate memory", "INT_MAX", "overflow")


class FakeWorld(TensorWorld):
    """Calls torch on fake tensors only: some kernels read beyond inputs of unfitting sizes."""

    def __init__(self, table: OpTable) -> None:
        super().__init__(table)
        self.mode = FakeTensorMode()
        self.converted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        known = self.converted.setdefault(id(value), (value, self.mode.from_tensor(value)))
        return known[1]

    def emit(self, op: Op, args: Any) -> Any:
        try:
            with self.mode:
                return super().emit(op, pytree.tree_map(self.fake, args))
        except AssertionError as error:  # what some of torch's decompositions say
            raise EvaluateError(str(error)) from error


class GraphWorld(TensorWorld):
    """Writes calls into an FX graph; a handle is a node with its fake value."""

    def __init__(self, table: OpTable, key: str) -> None:
        super().__init__(table)
        self.graph = fx.Graph()
        self.key = key

    def placeholder(self, name: str, value: torch.Tensor) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta[self.key] = value
        return node

    def meta(self, handle: Any) -> Any:
        return handle.meta[self.key] if isinstance(handle, fx.Node) else handle

    def emit(self, op: Op, args: Any) -> Any:
        target, call_args, kwargs = self.table.call(op, args)
        values, named = fx.map_arg((call_args, kwargs), lambda node: node.meta[self.key])
        node = self.graph.call_function(target, tuple(call_args), dict(kwargs))
        node.meta[self.key] = target(*values, **named)
        return node


def left_side(rule: Rule, table: OpTable, random: Random) -> tuple[fx.GraphModule, Any] | None:
    """A graph of what the rule matches, and inputs for it; None where it never fires."""
    search = Search(rule, table, random)
    search.world = FakeWorld(table)
    structures = search.collect(1, ATTEMPTS)
    if not structures:
        return None
    values = structures[0].fill({})
    mode = FakeTensorMode()
    world = GraphWorld(table, "example_value" if rule.stage == "pre_grad" else "val")
    inputs: list[torch.Tensor] = []

    def handle(name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            inputs.append(value)
            return world.placeholder(f"{name}_{len(inputs)}", mode.from_tensor(value))
        is_list = isinstance(value, list)
        return [handle(name, item) for item in value] if is_list else value

    env = bind_types(rule, {name: handle(name, v) for name, v in values.items()}, world)
    assert not isinstance(env, Failure)
    try:
        with mode:
            roots = [
                evaluate(expr, env, world, table, torch_level=rule.stage == "pre_grad")
                for expr in rule.match.values()
            ]
    except TORCH_ERRORS:
        return None  # nothing a program could have traced
    roots = [root for root in roots if isinstance(world.meta(root), torch.Tensor)]
    world.graph.output(tuple(roots))
    return fx.GraphModule(torch.nn.Module(), world.graph), inputs


def apply(rules: tuple[Rule, ...], table: OpTable, random: Random) -> str:
    """Applies rules to a graph of the first one's left side; says how that ended."""
    rule = rules[0]
    book = RuleBook(rules=rules)
    if rule.stage == "trace":
        decomposition_table(book, table)
        return "trace"
    made = left_side(rule, table, random)
    if made is None:
        return "never fires"
    gm, inputs = made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StageWarning)
        result = run_stage(gm, rule.stage, book, table)
    report = result.report
    assert report.status != "failed", report.reason
    assert all(disabled.reason for disabled in report.disabled)
    if report.status == "changed":
        runs_like(gm, result.gm, inputs)
    return report.status if not report.disabled else "disabled"


def runs_like(old: fx.GraphModule, new: fx.GraphModule, inputs: list[torch.Tensor]) -> None:
    """The new graph runs, and gives tensors like those of the old one (but other values: the
    rule is wrong)."""
    targets = [str(node.target) for node in (*old.graph.nodes, *new.graph.nodes)]
    if any(word in target for word in TRUSTING for target in targets):
        return
    try:
        before = old(*inputs)
    except (RuntimeError, IndexError, ZeroDivisionError, ValueError):
        return  # it never ran
    try:
        after = new(*inputs)
    except (RuntimeError, IndexError) as error:
        assert any(words in str(error) for words in OF_THE_VALUES), error
        return
    (output,) = old.graph.find_nodes(op="output")
    for root, left, right in zip(output.args[0], before, after, strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        # Strides as traced: some kernels give others than their fake twins say.
        traced = next(root.meta[key] for key in ("val", "example_value") if key in root.meta)
        assert not left.numel() or layout(traced) == layout(right)


def layout(tensor: torch.Tensor) -> list[int]:
    """The strides that mean something."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


def load_damaged(path: Path, random: Random, kind: str) -> RuleBook | None:
    """A damaged entry of the built-in rules, where it loads; None after messages."""
    wanted = "- rule:" if random.random() < RULES_SHARE else "- "
    text = DAMAGES[kind](random, random.choice(entries(wanted)))
    path.write_bytes(text.encode(errors="surrogateescape"))
    try:
        return load_book([path])
    except RuleErrors as errors:
        lines = text.count("\n") + 2
        assert str(errors)
        for found in errors.diagnostics:
            assert found.span.path == str(path)
            assert 1 <= found.span.line <= lines
            assert found.message[0] != "<"
        return None


def survives(path: Path, random: Random, kind: str) -> str:
    book = load_damaged(path, random, kind)
    if book is None:
        return "refused"
    str(book.warnings)
    by_name = {op.name: op for op in (*TABLE.entries, *book.ops)}
    table = OpTable(tuple(by_name.values())) if book.ops else TABLE
    for op in book.ops:
        table.find(op.name)
    return apply(book.rules, table, random) if book.rules else "other"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch logs every call that a fake tensor refuses."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "damaged.yaml"


def fuzz(path: Path, kind: str, examples: int) -> Mapping[str, int]:
    """Runs many cases; gives how often each ended how."""
    ends: dict[str, int] = {}

    @hypothesis.settings(max_examples=examples, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.seed(int(os.environ.get("EQSAT_FUZZ_SEED", "0")))
    @hypothesis.given(strategies.randoms(use_true_random=False))
    def case(random: Random) -> None:
        end = survives(path, random, kind)
        ends[end] = ends.get(end, 0) + 1

    case()
    return ends


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_answered(path: Path, kind: str) -> None:
    ends = fuzz(path, kind, 40)
    assert ends.get("refused", 0) > 0


@hypothesis.given(strategies.randoms(use_true_random=False))
@hypothesis.settings(max_examples=200)
def test_damaged_settings_are_answered(path: Path, random: Random) -> None:
    """Schedules and targets: read, or refused at places inside the file."""
    source = random.choice([RULES / "schedule.yaml", *sorted((RULES / "targets").glob("*.yaml"))])
    text = DAMAGES[random.choice(("bytes", "tokens"))](random, source.read_text())
    path = path.with_name(f"settings-{abs(hash(text))}.yaml")  # what was read is remembered
    path.write_bytes(text.encode(errors="surrogateescape"))
    try:
        if source.name == "schedule.yaml":
            assert load_schedule(path).phases("post_grad") or "post_grad" not in text
        else:
            assert load_target(path.stem, path.parent).matrix_rate("f32") > 0
    except RuleErrors as errors:
        lines = text.count("\n") + text.count("\r") + 2
        assert errors.diagnostics
        assert all(1 <= found.span.line <= lines for found in errors.diagnostics)
    finally:
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
def test_much_damage_is_answered(path: Path, kind: str) -> None:
    ends = fuzz(path, kind, 2000)
    assert ends["refused"] > 0
    assert kind == "bytes" or ends["changed"] > 0
