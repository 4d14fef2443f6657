"""What an expression stands for: a tensor or a Python value; and how many ops it holds.

Takes expressions and the names that are tensors; gives answers that need no op table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from .expr import Binary, Call, Expr, Item, Name, Negative, Sequence, children
from .facts import PREDICATES
from .rule import Rule, TensorType, VarType

# `each(op, xs)`: its first argument is the name of an op, not a variable.
EACH = "each"
ON_NUMBERS = ("min", "max", "abs", "len")
ON_LISTS = ("head", "tail")  # of shapes, and of lists of tensors


def tensor_vars(kinds: Mapping[str, VarType]) -> set[str]:
    """The variables that stand for tensors or lists of tensors."""
    return {name for name, kind in kinds.items() if isinstance(kind, TensorType)}


def list_vars(kinds: Mapping[str, VarType]) -> set[str]:
    """The variables that stand for lists of tensors."""
    return {n for n, kind in kinds.items() if isinstance(kind, TensorType) and kind.is_list}


def tensor_names(rule: Rule) -> set[str]:
    """The variables and pieces of a rule that stand for tensors."""
    found = tensor_vars(rule.vars)
    for name, expr in rule.lets.items():
        if is_tensor(expr, found):
            found.add(name)
    return found


def is_tensor(expr: Expr, tensors: Set[str]) -> bool:
    """Whether `expr` stands for a tensor (or a list of tensors)."""
    match expr:
        case Name(id=name):
            return name in tensors
        case Call(fn=fn, args=args):
            if fn in ON_NUMBERS or fn in ON_LISTS:
                return any(is_tensor(arg, tensors) for arg in args)
            return fn not in PREDICATES
        case Item(base=base):
            return is_tensor(base, tensors)
        case Binary() | Negative() | Sequence():
            return any(is_tensor(part, tensors) for part in children(expr))
    return False


def is_op(expr: Expr, tensors: Set[str]) -> bool:
    """Whether `expr` itself is one op on tensors (a call, an operator)."""
    return isinstance(expr, Call | Binary | Negative) and is_tensor(expr, tensors)


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The children that are expressions; the op in `each(op, xs)` is none."""
    if isinstance(expr, Call) and expr.fn == EACH:
        return children(expr)[1:]
    return children(expr)


def walk_values(expr: Expr) -> Iterator[Expr]:
    """`expr` and all beneath it, parents first, without the ops in `each(op, xs)`."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(parts(node)))


def count_ops(roots: Mapping[str, Expr], lets: Mapping[str, Expr], tensors: Set[str]) -> int:
    """How many ops the roots need, with equal ones and unused pieces counted once or never."""
    found: set[Expr] = set()
    waiting = list(roots.values())
    seen: set[Expr] = set()
    while waiting:
        expr = waiting.pop()
        if expr in seen:
            continue
        seen.add(expr)
        if is_op(expr, tensors):
            found.add(expr)
        if isinstance(expr, Name) and expr.id in lets:
            waiting.append(lets[expr.id])
        waiting.extend(parts(expr))
    return len(found)


def grows(rule: Rule) -> bool:
    """Whether the right side needs more ops than the left."""
    tensors = tensor_names(rule)
    right = count_ops(rule.make, rule.lets, tensors)
    return right > count_ops(rule.match, {}, tensors)
