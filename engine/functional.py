"""Custom ops that write into their arguments, as rules see them: functions of values.

AOTAutograd keeps a call of such an op inside `auto_functionalized_v2`, which no pattern can look
into. Where an `op` entry declares the op, the call becomes one of a functional form made here:
it takes what the op takes and gives the op's results, then the new value of each argument that
the op writes. `norm_out(out, x, w)` in a rule therefore stands for what `out` holds afterwards.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2

# What a schema says about the memory of a tensor: `Tensor(a0!) out`.
_ALIAS = re.compile(r"\(\w+!?( -> \w+)?\)")
_LIBRARY = torch.library.Library(  # type: ignore[no-untyped-call]
    "eqsat_functional", "FRAGMENT"
)
_forms: dict[torch._ops.OpOverload, torch._ops.OpOverload | None] = {}
_origins: dict[Any, torch._ops.OpOverload] = {}


def functional_form(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The functional form of an op that writes into tensors; None where it writes into
    optional tensors, lists or arguments given by name, or gives back what it wrote."""
    if overload not in _forms:
        _forms[overload] = _define(overload)
    return _forms[overload]


def mutable_form(target: Any) -> torch._ops.OpOverload | None:
    """The op behind a functional form; None where `target` is no such form."""
    return _origins.get(target)


def written_places(overload: torch._ops.OpOverload) -> tuple[int, ...]:
    """The arguments that the op writes, by their places."""
    return tuple(
        place
        for place, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def open_calls(graph: fx.Graph, declared: Container[torch._ops.OpOverload]) -> bool:
    """Replaces functionalised calls of `declared` ops by calls of their functional forms, in
    place; gives whether there were any. Calls that write into views stay as they are."""
    changed = False
    for target in (auto_functionalized, auto_functionalized_v2):
        for node in graph.find_nodes(op="call_function", target=target):
            changed |= node.args[0] in declared and _open(graph, node)
    return changed


def _open(graph: fx.Graph, node: fx.Node) -> bool:
    overload: Any = node.args[0]
    form = functional_form(overload)
    given = None if form is None else _arguments(overload, node)
    if form is None or given is None:
        return False
    if any(user.target is not operator.getitem for user in node.users):
        return False
    # The higher-order op gives one None for an op without results.
    results = len(overload._schema.returns)
    shift = 1 if results == 0 else 0
    with graph.inserting_before(node):
        call = graph.call_function(form, *given)
        call.meta = {**node.meta, "val": _shifted(node.meta.get("val"), shift)}
        single = len(form._schema.returns) == 1
        for user in list(node.users):
            place = int(user.args[1]) - shift  # type: ignore[arg-type]
            if place < 0:
                continue
            made = call if single else graph.call_function(operator.getitem, (call, place))
            if single:
                call.meta["val"] = user.meta.get("val")
            else:
                made.meta = dict(user.meta)
            user.replace_all_uses_with(made)
    for user in list(node.users):
        graph.erase_node(user)
    graph.erase_node(node)
    return True


def _shifted(value: Any, shift: int) -> Any:
    return tuple(value[shift:]) if isinstance(value, tuple | list) else value


def _arguments(
    overload: torch._ops.OpOverload, node: fx.Node
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The op's arguments; None where one that is written is a view of its base."""
    given = dict(node.kwargs)
    bases: Sequence[Any] = given.pop("_all_bases", ())  # type: ignore[assignment]
    order = []
    for argument in overload._schema.arguments:
        name = argument.name
        place = given.pop(f"_{name}_base_index", None)
        if isinstance(place, int):
            order.append(place)
            given[name] = bases[place]
        if name not in given and not argument.has_default_value():
            return None
    # Anything else said about an argument describes a view, or an alias of another one.
    names = {argument.name for argument in overload._schema.arguments}
    if set(given) - names or order != list(range(len(bases))):
        return None
    placed, named = [], {}
    for argument in overload._schema.arguments:
        value = given.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            placed.append(value)
    return tuple(placed), named


def _define(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    schema = overload._schema
    places = written_places(overload)
    written = [schema.arguments[place] for place in places]
    plain = all(str(one.type) == "Tensor" and not one.kwarg_only for one in written)
    if not places or not plain or any(result.alias_info for result in schema.returns):
        return None
    name = f"{overload.namespace}__{overload._opname}__{overload._overloadname}"
    taken = f"eqsat_functional.{name}"
    again = sum(known is not None and str(known).startswith(taken) for known in _forms.values())
    if again:  # the op was defined anew, say in a notebook
        name = f"{name}__{again}"
    arguments, returns = _ALIAS.sub("", str(schema)).split("(", 1)[1].rsplit(") -> ", 1)
    results = [returns.strip("()")] if schema.returns else []
    results += ["Tensor"] * len(places)
    text = f"{name}({arguments}) -> ({', '.join(results)})"
    _LIBRARY.define(text)  # type: ignore[no-untyped-call]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for place in places:
            given[place] = given[place].clone()
        found = overload(*given, **kwargs)
        own = () if not schema.returns else found if len(schema.returns) > 1 else (found,)
        together = (*own, *(given[place] for place in places))
        return together if len(together) > 1 else together[0]

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    form: torch._ops.OpOverload = getattr(torch.ops.eqsat_functional, name).default
    _origins[form] = overload
    return form
