"""The roof: what `torch.compile(model, backend="eqsat")` calls.

`compile_graph` and `compile_aten` together are the list of steps of the compiler, in order
of running (docs/how_it_works.md names the folder behind each). A failure in any step gives
the user the unoptimised graph and one warning; `EQSAT_STRICT=1` raises instead.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from .aliasing import guard_overlap, guard_strides
from .codegen.compile import CompileOptions, compile_program
from .codegen.folded import FoldedGraph
from .codegen.gpu.captured import CapturedGraph, reason_against
from .codegen.out_views import fits_in_view
from .codegen.segmented import SegmentedGraph
from .codegen.verified import VerifiedGraph
from .codegen.weights import lay_out_weights
from .config import Settings, resolve
from .contest import CANDIDATES, fastest
from .engine.chaos import CHEAPEST
from .engine.functional import open_calls
from .engine.graph_check import graph_problems
from .engine.nearest_scales import with_eager_scales
from .engine.shelf import without_collection
from .engine.stage import StageOptions, StageResult, run_stage
from .logs import log_fusion, log_graph, log_program, log_text
from .lowering.dead import without_dead
from .lowering.fold import split_constants
from .lowering.fuse import fuse
from .lowering.in_place_parts import with_parts_in_place
from .lowering.interpret import interpret
from .lowering.loops import Program
from .lowering.lower import lower
from .lowering.order import with_least_memory
from .lowering.placement import order_problems
from .lowering.seeds import note_repeated
from .lowering.segments import segments
from .lowering.simplify import simplify
from .lowering.verify import VerifyError, check_program, refuse
from .reports import CompileReport, StageInput, open_report, tell_watchers
from .session import Session, open_session

Compiled = Callable[..., Any]


class EqsatWarning(UserWarning):
    """A part of the compile was skipped; results are those of eager."""


@dataclass
class Capture:
    """One Dynamo graph on its way through the compiler."""

    session: Session
    report: CompileReport
    mutated: set[int] = field(default_factory=set)  # inputs written in place by the graph


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Compiled:
    """Compile one Dynamo graph; gives a callable with the calling convention of `gm`.

    Raises OptionError for an unknown option, and RestartAnalysis where Dynamo is to trace
    again; any other failure falls back to `gm`.
    """
    settings = resolve(mode, options)
    if any(isinstance(value, list | tuple | dict) for value in example_inputs):
        again = functools.partial(compile_graph, mode=mode, options=options)
        return flatten_graph_inputs(gm, example_inputs, again)
    report = open_report("capture")
    try:
        with without_collection(), _use_lazy_graph_module(True):
            capture = Capture(open_session(settings, _warn, _device(gm)), report)
            compiled = _compile_captured(gm, example_inputs, capture)
    except RestartAnalysis:  # not a failure: Dynamo traces again, knowing more
        raise
    except Exception as error:
        return _fall_back(gm, error, report, settings)
    return guard_overlap(compiled, gm, example_inputs, frozenset(capture.mutated))


def _device(gm: fx.GraphModule) -> str:
    """The device type that decides costs: an accelerator wherever a tensor of the graph is on
    one, as what remains on the CPU is small beside it."""
    examples = (node.meta.get("example_value") for node in gm.graph.nodes)
    found = {value.device.type for value in examples if isinstance(value, torch.Tensor)}
    return min(found - {"cpu", "meta"}, default="cpu")


def _compile_captured(
    gm: fx.GraphModule, example_inputs: Sequence[Any], capture: Capture
) -> Compiled:
    capture.report.key = capture.session.key
    # 1 pre_grad
    log_graph("pre_grad_graphs", "before pre_grad", gm)
    inference = not _is_differentiated(gm, example_inputs)
    rewritten = _run_stage(gm, "pre_grad", capture, capture.report, inference=inference).gm
    rewritten = with_eager_scales(rewritten)
    _copy_sources(gm, rewritten)
    # 2 AOTAutograd, which calls back: 3 joint and 4 partition, then 5 to 11 per graph
    compiled = aot_module_simplified(
        rewritten,
        example_inputs,
        fw_compiler=functools.partial(compile_aten, kind="forward", capture=capture),
        bw_compiler=torch._dynamo.disable(  # type: ignore[no-untyped-call]
            functools.partial(compile_aten, kind="backward", capture=capture)
        ),
        inference_compiler=functools.partial(compile_aten, kind="inference", capture=capture),
        partition_fn=functools.partial(partition_joint, capture=capture),
        decompositions=dict(capture.session.decompositions),
        keep_inference_input_mutations=True,
    )
    return torch._dynamo.disable(compiled)  # type: ignore[no-untyped-call,no-any-return]


def _is_differentiated(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether autograd will record a graph on these inputs, or on what `gm` holds itself."""
    tensors = [value for value in (*inputs, *gm.parameters()) if isinstance(value, torch.Tensor)]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _copy_sources(old: fx.GraphModule, new: fx.GraphModule) -> None:
    """Dynamo's notes on where each input comes from: AOTAutograd reads from them which inputs
    are parameters."""
    if new is old or not hasattr(old, "_param_name_to_source"):
        return
    new._param_name_to_source = old._param_name_to_source
    pairs = zip(*(gm.graph.find_nodes(op="placeholder") for gm in (old, new)), strict=True)
    for source, node in pairs:
        if hasattr(source, "_dynamo_source"):
            node._dynamo_source = source._dynamo_source


def partition_joint(
    joint: fx.GraphModule, inputs: Sequence[Any], *, capture: Capture, **how: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Steps 3 and 4: rules on the joint graph, then torch's min-cut partition."""
    rewritten = _run_stage(joint, "joint", capture, capture.report).gm
    if rewritten is not joint:
        try:
            return min_cut_rematerialization_partition(rewritten, inputs, **how)
        except Exception as error:
            _warn(f"the rewritten joint graph could not be partitioned: {error}")
    return min_cut_rematerialization_partition(joint, inputs, **how)


def compile_aten(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, kind: str, capture: Capture
) -> Compiled:
    """Steps 5 to 11 for one ATen graph; gives a boxed callable (one list of inputs)."""
    report = open_report(kind)
    report.key = capture.session.key
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is not None:
        written = (i for i, info in enumerate(metadata.input_info) if info.mutates_data)
        capture.mutated.update(written)
    static = () if kind == "backward" or metadata is None else metadata.static_input_indices or ()
    settings = capture.session.settings
    try:
        with without_collection():  # a backward graph is compiled later, on its own
            compiled = _compile_aten(gm, kind, tuple(static), capture, report)
        return guard_strides(compiled, gm) if kind == "backward" else compiled
    except Exception as error:
        return _boxed(_fall_back(gm, error, report, settings))


def _compile_aten(
    gm: fx.GraphModule, kind: str, static: tuple[int, ...], capture: Capture, report: CompileReport
) -> Compiled:
    session = capture.session
    note_repeated(gm)
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    weights = {names[index]: index for index in static if index < len(names)}
    frozen = frozenset(weights) - _written(gm) if kind == "inference" else frozenset()
    if not session.settings.fold:
        frozen = frozenset()
    with _timed(report, "post_grad"):  # 5 post_grad
        inference = kind == "inference"
        stage = _run_stage(gm, "post_grad", capture, report, weights, frozen, inference)
    graph = AtenGraph(gm, weights, frozen, session, _saved(names) if kind == "backward" else None)
    if stage.others:
        with _timed(report, "contest"):
            stage = _fastest(graph, stage, report)
    log_graph("post_grad_graphs", f"{kind} after post_grad", stage.gm)
    return compile_rewritten(graph, stage, report)


@dataclass(frozen=True)
class AtenGraph:
    """A graph as AOTAutograd gave it. `weights` are its placeholders that are parameters, by
    their places; `frozen` those that may be folded; `saved` those of a backward that nobody
    else holds."""

    gm: fx.GraphModule
    weights: Mapping[str, int]
    frozen: frozenset[str]
    session: Session
    saved: frozenset[str] | None = None

    def lasting(self, inputs: Sequence[str]) -> frozenset[str]:
        """Those of `inputs` that somebody holds anyway."""
        if self.saved is None:
            return frozenset(self.weights)
        return frozenset(inputs) - self.saved


def _saved(names: Sequence[str]) -> frozenset[str]:
    """Placeholders of a backward graph but for the inputs of its forward, whose names
    AOTAutograd keeps."""
    return frozenset(name for name in names if not name.startswith("primals"))


def _fastest(graph: AtenGraph, stage: StageResult, report: CompileReport) -> StageResult:
    """The fastest of several forms of the graph, timed; that of the cost model where they cannot
    be timed."""

    def build(one: StageResult) -> Compiled:
        return compile_rewritten(graph, one, CompileReport(report.kind))

    try:
        stage, report.contest = fastest(graph.gm, stage, build, graph.session.key)
    except Exception as error:
        if graph.session.settings.strict:
            raise
        _warn(f"candidates were not timed: {type(error).__name__}: {error}")
    return stage


def compile_rewritten(graph: AtenGraph, stage: StageResult, report: CompileReport) -> Compiled:
    """Steps 6 to 11 for the graph of `stage`, which `graph` became."""
    session, frozen = graph.session, graph.frozen
    with _timed(report, "fold"):  # 6 fold
        constant = (
            lay_out_weights(stage.gm, frozen)
            if frozen and session.settings.picks_kernels
            else stage.gm
        )
        split = split_constants(constant, frozen) if frozen else None
        if split is not None:
            report.folded = {"values": list(split.names), "bytes": split.bytes}
    rewritten = graph.gm if stage.checks and split is None else stage.gm
    with _timed(report, "lower"):  # 7 lower
        main = rewritten if split is None else split.main
        own = session.settings.numerics == "fast"
        lowered = lower(main, session.table, session.scalars, session.target.loops, own_random=own)
        if session.settings.verify:
            check_program("lower", lowered)
    log_program("ir_pre_fusion", lowered)
    pieces = segments(lowered)
    if len(pieces) == 1 and pieces[0].call is None:
        run = compile_lowered(lowered, graph, report, _boxed(main.forward))
        if session.settings.captures:
            run = _captured(run, lowered, main, graph, report)
    else:  # calls in between tell sizes
        runs = [
            compile_lowered(
                piece.program, graph, report, functools.partial(interpret, piece.program)
            )
            if piece.call is None
            else None
            for piece in pieces
        ]
        run = SegmentedGraph(lowered, pieces, runs)
    if split is None:
        return run
    return FoldedGraph(split, run, stage.checks, _boxed(graph.gm.forward))


def _captured(
    run: Compiled, program: Program, gm: fx.GraphModule, graph: AtenGraph, report: CompileReport
) -> Compiled:
    """`run` as a CUDA graph, where it can be one. What the graph was not given by its caller
    (folded constants) keeps its place, as parameters and what is written do."""
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    given = {node.name for node in graph.gm.graph.find_nodes(op="placeholder")}
    lasting = {*graph.weights, *_written(gm)}
    static = [place for place, name in enumerate(names) if name in lasting or name not in given]

    def tell(reason: str) -> None:
        log_text("cudagraphs", lambda: f"{report.kind} graph {report.graph} skipped: {reason}")

    reason = reason_against(program)
    if report.kind != "inference":
        reason = "what a training graph saves would be copied"
    if reason is not None:
        tell(reason)
        return run
    return CapturedGraph(run, static, tell)


def compile_lowered(
    lowered: Program, graph: AtenGraph, report: CompileReport, plain: Compiled
) -> Compiled:
    """Steps 8 to 11 for a program of `graph`, added to what `report` holds already. `plain`,
    boxed, is what runs where `verify` finds the result to be wrong."""
    session = graph.session
    verify = session.settings.verify
    with _timed(report, "fuse"):  # 8 fuse
        into = functools.partial(fits_in_view, measure=session.settings.picks_kernels)
        lowered = with_parts_in_place(without_dead(lowered), into)
        if verify:
            check_program("parts in place", lowered)
        program, fusion = fuse(lowered, session.book.fuse, session.target.loops)
        if verify:
            check_program("fuse", program)
        program = simplify(without_dead(program), session.target.loops)
        if verify:
            check_program("simplify", program)
    with _timed(report, "order"):  # 9 plan
        ordered = with_least_memory(program, graph.saved or frozenset())
        if verify:
            refuse("order", list(order_problems(program.steps, ordered.steps)))
            check_program("order", ordered)
        program = ordered
    report.fusion = fusion if report.fusion is None else report.fusion + fusion
    log_fusion(fusion)
    log_program("ir_post_fusion", program)
    with _timed(report, "build"):  # 10 emit, 11 build and launch
        how = CompileOptions(
            measure_gemm=session.settings.picks_kernels,
            lasting=graph.lasting([name for name in program.inputs if isinstance(name, str)]),
            verify=verify,
            loops=session.target.loops,
            blocks=session.target.blocks,
            tight=report.kind != "inference",
        )
        compiled = compile_program(program, session.scalars, how)
    report.source += compiled.source
    log_text("output_code", lambda: compiled.source)
    report.kernels += compiled.kernels
    report.externs += compiled.externs
    if not verify or compiled.parts is None:
        return compiled
    tell = functools.partial(_tell_of_failure, report, session.settings)
    return VerifiedGraph(compiled, lowered, fusion.members(), plain, tell)


def _tell_of_failure(report: CompileReport, settings: Settings, error: VerifyError) -> None:
    """The graph ran once and gave something else than it should."""
    if settings.strict:
        raise error
    report.fallback = str(error)
    _warn(f"{report.kind} graph {report.graph} runs unoptimised: {error}")


def _run_stage(
    gm: fx.GraphModule,
    stage: str,
    capture: Capture,
    report: CompileReport,
    weights: Mapping[str, int] | None = None,
    frozen: frozenset[str] = frozenset(),
    inference: bool = False,
) -> StageResult:
    session = capture.session
    if stage != "pre_grad" and open_calls(gm.graph, session.table.writers):
        gm.recompile()
    options = StageOptions(
        profile=session.settings.numerics,
        weights=weights or {},
        frozen=frozen,
        target=session.target,
        inference=inference,
        lowered=session.lowered,
        strict=session.settings.strict,
        extraction=session.settings.extraction,
        alternatives=CANDIDATES if stage == "post_grad" and _measures(session.settings) else 0,
    )
    tell_watchers(StageInput(report, stage, gm, options, session.book, session.table))
    result = run_stage(gm, stage, session.book, session.table, options)
    report.stages.append(result.report)
    if session.settings.verify:
        refuse(stage, graph_problems(result.gm, session.table))
    return result


def _measures(settings: Settings) -> bool:
    return settings.cost == "measured" and settings.extraction == CHEAPEST


def _written(gm: fx.GraphModule) -> frozenset[str]:
    """Placeholders that an in-place op of the graph writes."""
    return frozenset(
        argument.name
        for node in gm.graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        for argument in node.all_input_nodes
        if argument.op == "placeholder"
    )


def _boxed(run: Compiled) -> Compiled:
    return make_boxed_func(run)


def _fall_back(
    gm: fx.GraphModule, error: Exception, report: CompileReport, settings: Settings
) -> Compiled:
    """The unoptimised graph, with one warning that names what failed."""
    if settings.strict:
        raise error
    report.fallback = f"{type(error).__name__}: {error}"
    _warn(f"{report.kind} graph {report.graph} runs unoptimised: {report.fallback}")
    return gm.forward


def _warn(message: str) -> None:
    warnings.warn(f"eqsat: {message}", EqsatWarning, stacklevel=2)


@contextlib.contextmanager
def _timed(report: CompileReport, step: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        report.seconds[step] = report.seconds.get(step, 0.0) + time.perf_counter() - start
