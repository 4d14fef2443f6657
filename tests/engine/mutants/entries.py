"""Mutants of whole rules: one field of one entry of a rule file changed.

Takes the rule folders; gives `Mutant`s in file order, and the YAML of each.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from eqsat.engine.load import RULES, builtin_book
from eqsat.engine.schedule import load_schedule

from .operators import Names, mutations

Entry = dict[str, Any]
# Says which graphs a rule is for, or when it pays; values do not depend on it.
_ABOUT_GRAPHS = frozenset({"is_weight", "is_frozen", "is_input", "before", "users"})
_STRICTER = {
    "reassociate": "exact",
    "approximate": "reassociate",
    "signed_zero": "exact",
    "fewer_roundings": "exact",
}
_WIDER = {"float": "num", "int": "num", "bool": "num"}
_LOOSER = {ast.Lt: ast.LtE, ast.Gt: ast.GtE}


@dataclass(frozen=True)
class Mutant:
    """`place` is the way to the changed field: ("when", "1"); `after` is None where the field
    is dropped."""

    file: str
    rule: str
    operator: str
    place: tuple[str, ...]
    before: str
    after: str | None

    @property
    def folder(self) -> str:
        return self.file.partition("/")[0]

    @property
    def key(self) -> str:
        change = "dropped" if self.after is None else f"-> {self.after}"
        return f"{self.rule} {self.operator} {'.'.join(self.place)}: {self.before} {change}"


def all_mutants() -> Iterator[Mutant]:
    """Every mutation operator, everywhere in the built-in rules."""
    for path in rule_files():
        for entry in read_entries(path):
            yield from mutants_of(path.relative_to(RULES).as_posix(), entry)


def rule_files() -> list[Path]:
    return [path for name in load_schedule().folders for path in sorted((RULES / name).glob("*"))]


@lru_cache(maxsize=64)
def read_entries(path: Path) -> list[Entry]:
    """The entries of a file, every scalar as text."""
    entries = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return [entry for entry in entries if "rule" in entry]


def mutant_text(mutant: Mutant) -> str:
    """The YAML of the changed rule. Raises LookupError where the rule no longer has what the
    mutant changes."""
    for entry in read_entries(RULES / mutant.file):
        if entry["rule"] == mutant.rule:
            changed = _put(entry, mutant.place, mutant.before, mutant.after)
            return yaml.safe_dump([changed], sort_keys=False, width=1000)
    raise LookupError(f"there is no rule {mutant.rule} in rules/{mutant.file}")


def original_text(mutant: Mutant) -> str:
    """The YAML of the rule that the mutant changes."""
    entries = [e for e in read_entries(RULES / mutant.file) if e["rule"] == mutant.rule]
    return yaml.safe_dump(entries, sort_keys=False, width=1000)


def _put(node: Any, place: Sequence[str], before: str, after: str | None) -> Any:
    """A copy of `node` with `after` in the place of `before`; fields left empty go."""
    if not place:
        if _shown(node) != before:
            raise LookupError(f"expected {before!r}, found {_shown(node)!r}")
        return yaml.load(after, Loader=yaml.BaseLoader) if after and after[0] in "{[" else after
    step, *rest = place
    if isinstance(node, list):
        changed = _put(node[int(step)], rest, before, after)
        return [*node[: int(step)], *([changed] if changed else []), *node[int(step) + 1 :]]
    if step not in node:
        if before:
            raise LookupError(f"there is no {step}")
        return {**node, step: _put("", rest, before, after)}
    changed = _put(node[step], rest, before, after)
    return {key: changed if key == step else v for key, v in node.items() if key != step or changed}


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=1000).strip()


def mutants_of(file: str, entry: Entry) -> Iterator[Mutant]:
    """Every mutant of one entry."""
    for source in _SOURCES:
        for operator, place, before, after in source(entry):
            yield Mutant(file, entry["rule"], operator, place, before, after)


Change = tuple[str, tuple[str, ...], str, str | None]


def _expressions(entry: Entry) -> Iterator[tuple[tuple[str, ...], str]]:
    for name in ("match", "let", "make"):
        value = entry.get(name, {})
        if isinstance(value, str):
            yield (name,), value
        else:
            for root, text in value.items():
                yield (name, root), text


def _names(entry: Entry) -> Names:
    types: Mapping[str, str] = entry.get("vars", {})
    scalars = [name for name, kind in types.items() if "[" not in kind]
    constants = [name for name in scalars if types[name].startswith("const")]
    sizes = {
        letter: None
        for kind in types.values()
        if "[" in kind
        for letter in re.findall(r"(?<![.\w])[a-z]\w*", kind[kind.index("[") :])
    }
    tensors = [name for name in types if name not in scalars]
    commuting = _commuting() | {letter for letter in _letters(entry) if _commutes(entry, letter)}
    return Names(tensors, list(sizes), constants, list(entry.get("let", ())), commuting)


def _letters(entry: Entry) -> set[str]:
    """Names that stand for ops of a family."""
    members = entry.get("for", {})
    return set(members) if isinstance(members, dict) else {key for m in members for key in m}


def _commutes(entry: Entry, letter: str) -> bool:
    members = entry["for"]
    ops = members[letter] if isinstance(members, dict) else [m[letter] for m in members]
    return set(ops) <= _commuting()


@lru_cache(maxsize=1)
def _commuting() -> frozenset[str]:
    return frozenset(op.name for op in builtin_book().ops if op.commutes)


def _changed_expressions(entry: Entry) -> Iterator[Change]:
    names = _names(entry)
    for place, text in _expressions(entry):
        for operator, changed in mutations(text, names):
            yield operator, place, text, changed


def _swapped_roots(entry: Entry) -> Iterator[Change]:
    make = entry["make"]
    if isinstance(make, dict):
        roots = list(make)
        for first, second in itertools.pairwise(roots):
            yield "swapped-roots", ("make", first), make[first], make[second]


def _conditions(entry: Entry) -> Iterator[Change]:
    for number, text in enumerate(entry.get("when", ())):
        tree = ast.parse(text, mode="eval").body
        for operator, changed in _weaker(tree):
            after = None if changed is None else ast.unparse(changed)
            yield operator, ("when", str(number)), text, after


def _weaker(tree: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    """Conditions that hold for more than `tree`; None stands for no condition."""
    if _is_about_graphs(tree):
        return
    yield "dropped-condition", None
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        yield "loosened-condition", ast.BoolOp(ast.Or(), tree.values)
        for part in tree.values:
            rest: list[ast.expr] = [other for other in tree.values if other is not part]
            if not _is_about_graphs(part):
                joined = rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)
                yield "dropped-condition", joined
    if isinstance(tree, ast.Compare):
        yield from _weaker_bounds(tree)


def _weaker_bounds(tree: ast.Compare) -> Iterator[tuple[str, ast.expr]]:
    parts = [tree.left, *tree.comparators]
    if len(tree.ops) > 1:
        yield "dropped-bound", ast.Compare(parts[1], tree.ops[1:], parts[2:])
        yield "dropped-bound", ast.Compare(parts[0], tree.ops[:-1], parts[1:-1])
    for place, op in enumerate(tree.ops):
        looser = _LOOSER.get(type(op))
        if looser is not None:
            ops = [*tree.ops[:place], looser(), *tree.ops[place + 1 :]]
            yield "loosened-condition", ast.Compare(tree.left, ops, tree.comparators)


def _is_about_graphs(tree: ast.expr) -> bool:
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return bool(called) and called <= _ABOUT_GRAPHS


def _assumptions(entry: Entry) -> Iterator[Change]:
    for number, text in enumerate(entry.get("assumes", ())):
        yield "dropped-assumption", ("assumes", str(number)), _shown(text), None


def _tags(entry: Entry) -> Iterator[Change]:
    numerics = entry["numerics"]
    if isinstance(numerics, str):
        if numerics in _STRICTER:
            yield "strict-tag", ("numerics",), numerics, _STRICTER[numerics]
    elif "float" in numerics:
        if numerics["float"] in _STRICTER:
            yield "strict-tag", ("numerics", "float"), numerics["float"], "exact"
    else:
        yield "strict-tag", ("numerics",), _shown(numerics), "reassociate"


def _lost_gradients(entry: Entry) -> Iterator[Change]:
    """A right side with the same values, but cut off from its inputs."""
    make = entry["make"]
    floats = any(kind.startswith(("float", "num")) for kind in entry.get("vars", {}).values())
    if isinstance(make, str) and floats and entry.get("grad") != "false":
        yield "lost-gradient", ("make",), make, f"detach({make})"


def _types(entry: Entry) -> Iterator[Change]:
    """Variables of more dtypes, unless conditions speak of their dtypes, or of other ranks."""
    tied = " ".join(text for text in entry.get("when", ()) if "dtype" in text)
    for name, kind in entry.get("vars", {}).items():
        if "[" not in kind:
            continue
        word, _, dims = kind.partition("[")
        if word in _WIDER and not re.search(rf"\b{name}\b", tied):
            yield "wider-type", ("vars", name), kind, f"{_WIDER[word]}[{dims}"
        if not dims.startswith("...") and dims != "]":
            yield "wrong-rank", ("vars", name), kind, f"{word}[..., {dims}"
            yield "wrong-rank", ("vars", name), kind, f"{word}[{dims.partition(', ')[2] or ']'}"


def _cases(entry: Entry) -> Iterator[Change]:
    """A case that must fire said to be one that must not, and the other way round."""
    for name, other in (("fires", "misses"), ("misses", "fires")):
        for case in entry.get(name, ()):
            if other not in entry:
                yield "violated-case", (other,), "", f"[{_shown(case)}]"


def _families(entry: Entry) -> Iterator[Change]:
    """A family of pairs with the partner of one member given to another."""
    members = entry.get("for")
    if not isinstance(members, list):
        return
    for number, member in enumerate(members):
        other = members[(number + 1) % len(members)]
        last = list(member)[-1]
        if other[last] != member[last]:
            yield "wrong-member", ("for", str(number), last), member[last], other[last]


_SOURCES: tuple[Callable[[Entry], Iterator[Change]], ...] = (
    _changed_expressions,
    _swapped_roots,
    _conditions,
    _assumptions,
    _tags,
    _lost_gradients,
    _types,
    _cases,
    _families,
)
