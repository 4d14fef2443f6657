"""Checks of numbers that a rule leaves open: dims, sizes and constants that match anything.

Takes drafts and the op table; reports E608 and E610, which refuse a rule, and W704, W706 and
W707, which warn. Inductor once ignored the dims of a permute in its attention patterns, and
returned wrong numbers without a word (pytorch#195320); such a rule does not load here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from .expr import Call, Expr, Item, Literal, Name, Negative, Sequence, children, names
from .kinds import is_op, list_vars, tensor_vars, walk_values
from .op import Op
from .ops import OpTable
from .rule import ConstType, TensorType, VarType
from .rule_entries import Draft
from .source import Problems

# Ops whose other attributes say how a value is stored, not what it is.
_STORED = ("clone", "contiguous", "cast")
# Attributes that say which elements a result holds, and where.
_MOVES = (
    *("dim", "dims", "dim0", "dim1", "source", "destination", "shifts"),
    *("start", "end", "step", "index"),
)
# Attributes that, on the outermost op, give the result its shape or dtype. Further in they may
# be open: the sizes of a view that another view replaces decide nothing.
_SHAPES = (*_MOVES, "size", "shape", "sizes", "keepdim", "dtype", "split_size", "split_sizes")
# Their dims count in the result, which has one dim more.
_LONGER = ("unsqueeze", "stack", "Tensor.unsqueeze", "torch.unsqueeze", "torch.stack")
_PERMUTES = ("permute", "Tensor.permute", "torch.permute")


@dataclass(frozen=True)
class _Place:
    """One argument of a call on the left side."""

    call: Call
    op: Op
    name: str
    kind: str
    value: Expr
    outermost: bool


def check_wildcards(draft: Draft, table: OpTable, problems: Problems) -> None:
    """Reports what the left side binds and nothing reads, and dims that fit no tensor."""
    read = _read(draft)
    kinds = draft.rule.vars
    _check_operands(draft, read, problems)
    for place in _places(draft, table):
        value = place.value
        open_number = isinstance(value, Name) and isinstance(kinds.get(value.id), ConstType)
        if isinstance(value, Name) and open_number and value.id not in read:
            _report(place, value.id, draft, problems)
        _check_dims(place, kinds, problems)
    for call, outermost in _calls(draft):
        op = table.find(call.fn)
        if op is not None and call.how is not None and call.how not in read:
            _check_how(call, op, outermost, draft, table, problems)


def _read(draft: Draft) -> set[str]:
    """The names that the right side or a condition reads. How long a list of dims is says
    nothing about its dims."""
    rule = draft.rule
    read: set[str] = set()
    waiting = [*rule.make.values(), *rule.lets.values(), *(c.expr for c in rule.when)]
    while waiting:
        expr = waiting.pop()
        if isinstance(expr, Call) and expr.fn == "len":
            continue
        waiting.extend(children(expr))
        if not children(expr) or (isinstance(expr, Call) and expr.how):
            read |= names(expr)
    return read


def _calls(draft: Draft) -> Iterator[tuple[Call, bool]]:
    """The calls on the left side, and whether each is the outermost op of a root."""
    for root in draft.rule.match.values():
        top = root
        while isinstance(top, Item):
            top = top.base
        for node in walk_values(root):
            if isinstance(node, Call):
                yield node, node is top


def _places(draft: Draft, table: OpTable) -> Iterator[_Place]:
    lists = list_vars(draft.rule.vars)
    for call, outermost in _calls(draft):
        op = table.find(call.fn)
        if op is None:
            continue
        placed = table.arrange(op, call.args, dict(call.kwargs), Sequence, lists)
        for index, value in placed.items():
            param = op.params[index]
            yield _Place(call, op, param.name, param.kind, value, outermost)


def _decides(name: str, outermost: bool) -> bool:
    return name in (_SHAPES if outermost else _MOVES)


def _report(place: _Place, name: str, draft: Draft, problems: Problems) -> None:
    if not _decides(place.name, place.outermost):
        return
    counted = any(name in names(condition.expr) for condition in draft.rule.when)
    unread = "only its length is read" if counted else "nothing reads it"
    if place.outermost:
        message = f"'{name}' decides the shape of what is replaced, but {unread}"
    else:
        message = f"'{name}' may be any {place.name} of '{place.call.fn}', and {unread}"
    hint = "write the number, or use it in when or make"
    problems.error(place.value.span, "E608", message, hint)


def _check_how(
    call: Call, op: Op, outermost: bool, draft: Draft, table: OpTable, problems: Problems
) -> None:
    if call.fn in _STORED:
        return
    lists = list_vars(draft.rule.vars)
    given = table.arrange(op, call.args, dict(call.kwargs), Sequence, lists)
    hidden = [param.name for index, param in enumerate(op.params) if index not in given]
    deciding = [name for name in hidden if _decides(name, outermost)]
    if deciding:
        message = f"'{call.how}' hides {', '.join(deciding)} of '{call.fn}', and nothing reads it"
        hint = f"write {deciding[0]}=, or hand **{call.how} on in make"
        problems.error(call.span, "E608", message, hint)
    else:
        message = f"the attributes in '{call.how}' are matched, then ignored"
        hint = f"hand **{call.how} on in make, or write out those that matter"
        problems.warning(call.span, "W704", message, hint)


def _check_operands(draft: Draft, read: Set[str], problems: Problems) -> None:
    """A constant that is computed with: the result cannot be the same for all its values."""
    tensors = tensor_vars(draft.rule.vars)
    for root in draft.rule.match.values():
        for node in walk_values(root):
            if isinstance(node, Call) or not is_op(node, tensors):
                continue
            for part in children(node):
                kind = draft.rule.vars.get(part.id) if isinstance(part, Name) else None
                if isinstance(part, Name) and isinstance(kind, ConstType) and part.id not in read:
                    message = f"'{part.id}' may be any number here, and nothing reads it"
                    hint = "use it in make, or say in when which values are meant"
                    problems.warning(part.span, "W707", message, hint)


def _check_dims(place: _Place, kinds: Mapping[str, VarType], problems: Problems) -> None:
    """Dims that are written out must fit the rank of the variable they count in."""
    first = place.call.args[0] if place.call.args else None
    kind = kinds.get(first.id) if isinstance(first, Name) else None
    is_dim = place.kind in ("dim", "dims") or place.name in ("dim0", "dim1")
    if not isinstance(first, Name) or not isinstance(kind, TensorType) or not is_dim:
        return
    value = place.value
    dims = [_whole(item) for item in (value.items if isinstance(value, Sequence) else (value,))]
    if kind.lead is not None:
        if place.call.fn not in _PERMUTES and any(dim is not None and dim >= 0 for dim in dims):
            message = f"a dim from the front, but '{first.id}' may have any rank"
            hint = "count from the end (-1), or give its sizes"
            problems.warning(value.span, "W706", message, hint)
        return
    _check_fixed(place, first.id, len(kind.dims), dims, problems)


def _check_fixed(
    place: _Place, name: str, rank: int, dims: SequenceOf[int | None], problems: Problems
) -> None:
    """Dims of a tensor with `rank` dims; None stands for one that is not written out."""
    if place.call.fn in _PERMUTES and isinstance(place.value, Sequence):
        order = {dim % max(rank, 1) for dim in dims if dim is not None}
        if len(dims) != rank or (None not in dims and len(order) != rank):
            message = f"this is no order of the {_counted(rank)} of '{name}'"
            problems.error(place.value.span, "E610", message, "each dim stands in it once")
            return
    size = max(rank + (place.call.fn in _LONGER), 1)
    for dim in dims:
        if dim is not None and not -size <= dim < size:
            message = f"'{name}' has no dim {dim}, but {_counted(rank)}"
            hint = f"dims are {-size} to {size - 1} here"
            problems.error(place.value.span, "E610", message, hint)
            return


def _counted(rank: int) -> str:
    return "1 dim" if rank == 1 else f"{rank} dims"


def _whole(expr: Expr) -> int | None:
    match expr:
        case Literal(value=int() as value) if not isinstance(value, bool):
            return value
        case Negative(value=Literal(value=int() as value)):
            return -value
    return None
