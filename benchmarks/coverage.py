"""`docs/coverage.md`: which ops the rules know, and how each is lowered.

    python -m benchmarks.coverage

Takes the built-in rules and the lowerings; gives Markdown that is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from eqsat.engine.expr import Binary, Call, Expr, Negative
from eqsat.engine.kinds import EACH, walk_values
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import OpEntry, Rule, RuleBook
from eqsat.lowering.draws import DRAWS
from eqsat.lowering.lower import lowered_ops
from eqsat.lowering.pointwise import OPERATORS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
_HEAD = """# Coverage

Written by `python -m benchmarks.coverage`; a test keeps it current. [opdb.md](opdb.md) says how
samples of every op of torch compare with eager.

## Ops

Every op that `rules/ops` declares or a lowering takes by name. An op that is not here is an
extern call, like all calls on complex, float8 and sparse tensors: the ATen op itself, on strided
memory.

- **pointwise**, **reduction**, **creation**: a loop nest, which fuses. **view**: index arithmetic
  without code. **indexed**: a loop nest that reads through index tensors; where their range is
  not known, one pass over them first tells whether to raise what eager raises. **scatter**: a
  copy, then a loop nest that writes through index tensors, in order where indices may be equal.
  **draw**: a loop nest with torch's own random numbers. **extern**: the ATen op. *as x*: spelled
  through other ops. **traced**: a call of torch that AOTAutograd opens; pre_grad rules see it.
- **Rules** are those that mention the op on either side; a family counts as one.

| op | lowered as | rules |
|---|---|---|
"""


def describe() -> str:
    """The page."""
    book = builtin_book()
    table = OpTable(book.ops)
    rules = rules_by_op(book, table)
    rows = [
        f"| `{name}` | {how} | {', '.join(f'`{rule}`' for rule in rules.get(name, ()))} |"
        for name, how in sorted(lowerings(book, table).items())
    ]
    return _HEAD + "\n".join(rows) + "\n"


def lowerings(book: RuleBook, table: OpTable) -> dict[str, str]:
    """What each op becomes, in the words of the page."""
    found = lowered_ops(table)
    found.update((str(target).split(".")[1], "draw") for target in DRAWS)
    declared = {entry.name: _declared(entry, found) for entry in book.ops}
    undeclared = {name: how for name, how in found.items() if not _declares(table, name)}
    return {**undeclared, **declared}


def _declares(table: OpTable, name: str) -> bool:
    """Whether an entry of rules/ops covers `name`, under this name or another."""
    op = table.find(name)
    return op is not None and op.entry is not None


def _declared(entry: OpEntry, lowered: Mapping[str, str]) -> str:
    if isinstance(entry.as_, Call):
        return f"*as {entry.as_.fn}*"
    if entry.as_ is not None:
        return "*as several ops*"
    if not entry.aten:
        return "traced"
    return lowered.get(entry.name, "extern")


def rules_by_op(book: RuleBook, table: OpTable) -> dict[str, tuple[str, ...]]:
    """The names of the rules that mention an op on either side, by canonical name."""
    found: dict[str, dict[str, None]] = {}
    for rule in book.rules:
        for name in _mentioned(rule):
            op = table.find(name)
            known = name if op is None else op.entry.name if op.entry is not None else op.name
            found.setdefault(known, {})[rule.name.partition("/")[0]] = None
    return {name: tuple(sorted(rules)) for name, rules in found.items()}


def _mentioned(rule: Rule) -> Iterator[str]:
    sides: Iterable[Expr] = (*rule.match.values(), *rule.lets.values(), *rule.make.values())
    for side in sides:
        for expr in walk_values(side):
            match expr:
                case Call(fn=fn, args=args):
                    yield str(getattr(args[0], "id", fn)) if fn == EACH else fn
                case Binary(op=op):
                    yield "div" if op == "//" else OPERATORS[op]
                case Negative():
                    yield "neg"


def main() -> None:
    PAGE.write_text(describe(), encoding="utf-8")


if __name__ == "__main__":
    main()
