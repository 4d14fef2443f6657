"""Whether a memory plan keeps apart what is alive at the same time.

Takes a program, its plan and the bytes of each temporary buffer; gives problems in plain
words. Lifetimes are found anew here, so that a mistake in the plan's own does not hide itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .dependence import lent, make_node, viewed
from .loops import Nest, Program, Step
from .plan import ALIGNMENT, MemoryPlan


def placement_problems(program: Program, plan: MemoryPlan, sizes: Mapping[str, int]) -> list[str]:
    """Everything that is wrong with where `plan` puts the temporary buffers of `program`."""
    offsets, total = plan.assign(sizes)
    spans = _spans(program)
    return [
        *_bounds(offsets, total, sizes, spans),
        *_overlaps(program, plan, offsets, sizes, spans),
    ]


def _spans(program: Program) -> dict[str, tuple[int, int]]:
    """The first and last step that touch each temporary buffer, results past the end."""
    behind = lent(program.steps)
    spans: dict[str, tuple[int, int]] = {}
    outputs = list(viewed(tuple(program.outputs)))
    for place, names in enumerate([*map(_touched, program.steps), outputs]):
        for name in names:
            for owner in (name, *behind.get(name, ())):
                if program.buffers[owner].role == "temp":
                    first, _ = spans.get(owner, (place, place))
                    spans[owner] = first, place
    return spans


def _touched(step: Step) -> frozenset[str]:
    node = make_node(0, step, 0, 0, 0)
    return node.reads | node.writes


def _bounds(
    offsets: Mapping[str, int],
    total: int,
    sizes: Mapping[str, int],
    spans: Mapping[str, tuple[int, int]],
) -> Iterator[str]:
    for name in spans:
        if name not in offsets:
            yield f"{name} is given no place"
        elif offsets[name] % ALIGNMENT or offsets[name] < 0:
            yield f"{name} lies at {offsets[name]}, which is not aligned"
        elif sizes[name] and offsets[name] + sizes[name] > total:
            yield f"{name} ends at {offsets[name] + sizes[name]}, beyond the arena's {total}"


def _overlaps(
    program: Program,
    plan: MemoryPlan,
    offsets: Mapping[str, int],
    sizes: Mapping[str, int],
    spans: Mapping[str, tuple[int, int]],
) -> Iterator[str]:
    """Buffers that share bytes at some step, but for those that are taken over in place."""
    names = [name for name in spans if name in offsets and sizes[name]]
    names.sort(key=lambda name: spans[name])
    alive: list[str] = []
    for name in names:
        first, _ = spans[name]
        alive = [other for other in alive if spans[other][1] >= first]
        for other in alive:
            if _apart(offsets, sizes, name, other):
                continue
            if spans[other][1] == first and plan.reuse.get(name) == other:
                yield from _handover(program.steps, name, other, first, offsets)
            else:
                step = program.steps[first].name if first < len(program.steps) else "the end"
                yield f"{name} and {other} share bytes at {step}, while both are alive"
        alive.append(name)


def _apart(offsets: Mapping[str, int], sizes: Mapping[str, int], one: str, other: str) -> bool:
    first, second = offsets[one], offsets[other]
    return first + sizes[one] <= second or second + sizes[other] <= first


def _handover(
    steps: Sequence[Step], new: str, old: str, place: int, offsets: Mapping[str, int]
) -> Iterator[str]:
    step = steps[place]
    if not isinstance(step, Nest):
        yield f"{new} is written over {old} by {step.name}, which is no nest"
    elif offsets[new] != offsets[old]:
        yield f"{new} is written over a part of {old} by {step.name}"


def order_problems(before: Sequence[Step], after: Sequence[Step]) -> Iterator[str]:
    """Steps of `before` that must run one after the other, and do not in `after`."""
    place = {step.name: number for number, step in enumerate(after)}
    if sorted(place) != sorted(step.name for step in before):
        yield "the steps are not the same"
        return
    nodes = [make_node(k, step, 0, k, k) for k, step in enumerate(before)]
    for k, node in enumerate(nodes):
        for earlier in nodes[:k]:
            bound = (earlier.writes & (node.reads | node.writes)) | (earlier.reads & node.writes)
            ordered = getattr(earlier.step, "ordered", False) and getattr(
                node.step, "ordered", False
            )
            if (bound or ordered) and place[earlier.step.name] > place[node.step.name]:
                why = f"share {min(bound)}" if bound else "are calls in order"
                yield f"{node.step.name} runs before {earlier.step.name}: they {why}"
