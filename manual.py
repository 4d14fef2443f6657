"""The reference tables of `rules/README.md`, made from the code they tell of.

Takes the field tables of the loader, the functions that conditions may call, the facts of
fusion rules and the explanation pages; gives Markdown, and writes it between two marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .engine.explanations import pages
from .engine.facts import PREDICATES, describe_predicates
from .engine.fields import KINDS, FieldSpec
from .lowering.fusion_words import fact_rows

BEGIN = "<!-- tables: written by `eqsat schema` -->"
END = "<!-- tables end -->"
# How a value is written, by field; by kind and field where kinds differ.
_EXAMPLES: Mapping[str, str] = {
    "rule": "silu-split",
    "doc": "Silu is x times its sigmoid.",
    "ref": "https://arxiv.org/abs/1702.03118",
    "vars": "{x: 'float[..., n]', k: 'const:int'}",
    "for": "{f: [relu, tanh]}",
    "match": "silu(x)",
    "when": "[n % 2 == 0, dtype(x) in (f32, f64)]",
    "let": "{wide: 'cast(x, f32)'}",
    "make": "x * sigmoid(x)",
    "both_ways": "true",
    "numerics": "{int: exact, float: reassociate}",
    "assumes": "[no_overflow, 0 <= t < c]",
    "witness": "{x: nan}",
    "fires": "[{n: 8}, {x: f16}]",
    "misses": "[{n: 7}]",
    "grad": "false",
    "device": "cuda",
    "fuse": "pointwise-into-reduction",
    "forbid": "softmax-alone",
    "prefer": "block-together",
    "gain": "2 * bytes(producer)",
    "op": "silu",
    "aten": "[silu.default]",
    "torch": "[F.silu]",
    "args": "x, dim, keepdim=False",
    "commutes": "true",
    "as": "permute(x, swapped(rank(x), -2, -1))",
    "flops": "2",
    "type": "float -> same",
    "means": "1 / sqrt(x)",
    "cpp": "1 / std::sqrt($x)",
    "triton": "tl.rsqrt($x)",
    "widen": "[f16, bf16]",
    "ulp": "2",
    "cost": "2",
}
_OWN_EXAMPLES: Mapping[tuple[str, str], str] = {
    ("fuse", "doc"): "A pointwise producer is computed inside the loop that reads it.",
    ("fuse", "when"): "[feeds(producer, consumer), invertible(producer, consumer)]",
    ("fuse", "worth"): "[readers(producer) == 1]",
    ("scalar", "scalar"): "rsqrt",
    ("scalar", "doc"): "One over the square root.",
    ("op", "scalar"): "x / (1 + exp(-x))",
    ("decompose", "decompose"): "my-losses",
    ("decompose", "doc"): "Losses that torch spells in plain arithmetic.",
    ("decompose", "ref"): "https://docs.pytorch.org/docs/stable/torch.compiler_ir.html",
    ("decompose", "aten"): "[soft_margin_loss.default]",
    ("decompose", "numerics"): "reassociate",
}


def tables() -> str:
    """All tables, as Markdown without the marks."""
    told = {row[0]: row for row in describe_predicates()}
    about_graph = [name for name in told if name in PREDICATES and PREDICATES[name].about_graph]
    others = [name for name in told if name not in about_graph]
    facts = [(f"`{name}({arguments})`", doc) for name, arguments, doc in fact_rows()]
    codes = [(_link(page.code), page.title) for page in pages().values()]
    parts = [
        ("### Fields of a `rule`", _fields("rule")),
        ("### Fields of `fuse`", _fields("fuse")),
        ("### Fields of `prefer`", _fields("prefer")),
        ("### Fields of `forbid` and `avoid`", _fields("forbid")),
        ("### Fields of an `op`", _fields("op")),
        ("### Fields of a `scalar`", _fields("scalar")),
        ("### Fields of `decompose`", _fields("decompose")),
        ("### Conditions: the place in the graph", _functions(about_graph, told)),
        ("### Conditions: values, shapes and numbers", _functions(others, told)),
        ("### Conditions and gains of fusion rules", _table(("fact", "meaning"), facts)),
        ("### Codes of messages", _table(("code", "meaning"), codes)),
    ]
    return "\n\n".join(f"{title}\n\n{table}" for title, table in parts)


def update_manual(path: Path) -> None:
    """Writes the tables anew. Raises ValueError where the file does not have both marks once."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path} must hold '{BEGIN}' and '{END}' once")
    path.write_text(_filled(text), encoding="utf-8")


def is_current(text: str) -> bool:
    """Whether the tables in the text of a manual are those that the code would write."""
    return text == _filled(text)


def _filled(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _fields(kind: str) -> str:
    rows = [
        (f"`{spec.name}`", "yes" if spec.required else "", f"`{_example(kind, spec)}`", _doc(spec))
        for spec in KINDS[kind]
    ]
    return _table(("field", "must", "for example", "meaning"), rows)


def _example(kind: str, spec: FieldSpec) -> str:
    chosen = spec.choices[0] if spec.choices else ""
    return _OWN_EXAMPLES.get((kind, spec.name)) or _EXAMPLES.get(spec.name) or chosen


def _doc(spec: FieldSpec) -> str:
    if not spec.choices:
        return spec.doc
    return f"{spec.doc} One of {', '.join(f'`{choice}`' for choice in spec.choices)}."


def _functions(names: Sequence[str], told: Mapping[str, tuple[str, str, str]]) -> str:
    return _table(("function", "meaning"), [(f"`{told[n][1]}`", told[n][2]) for n in names])


def _link(code: str) -> str:
    return f"[{code}](../engine/pages/{code}.md)"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
