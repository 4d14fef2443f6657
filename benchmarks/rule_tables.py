"""`docs/rules_that_pay.md`: what the rules do over many architectures.

    python -m benchmarks.rule_tables                        writes the page from rule_tables.json
    python -m benchmarks.rule_tables --measure [MODEL ...]  runs the models (all) anew first

Only rule stages, lowering and fusion run; nothing is compiled to C++ and nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .rule_effects import ABLATED, Effect, ablate, capture, effect

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rules_that_pay.md"
DATA = Path(__file__).with_suffix(".json")
TARGETS = ("cpu", "h200")
FOLDERS = (
    *("algebra", "attention", "decompose", "fold", "joint", "layout", "merge", "pre_grad"),
    *("serving", "trace"),
)
_HEAD = """# Rules that pay

Written by `python -m benchmarks.rule_tables` from `benchmarks/rule_tables.json`, which
`--measure` writes anew. The models are from `benchmarks/architectures.py`: two layers, 64
wide (the convolutional ones and the recommender at their depth), random weights, profile
`default`. Every number is a count or a prediction of the cost model, so it does not depend on
how busy the machine was; no run time is on this page. Which rules fire in which model, and which
never do, `eqsat rules --coverage` prints.

- **ops**: calls in the ATen graphs. **kernels**: loop nests and calls after fusion. **bytes**: what
  these read and write, each buffer once per kernel; what depends on parameters alone is folded
  and not counted. A backward graph is counted where the model is trained.
- **cost**: seconds that the cost model predicts, before over after (more is better).
- **file order**: the same rules without an e-graph (`benchmarks/file_order.py`): one after the
  other in the order of their files, each wherever it matches until it matches nowhere. **guarded**
  likewise, but a rewrite stays only where it makes the graph cheaper by itself. The number is
  its predicted cost over that of the graph that eqsat chose: above 1 eqsat is cheaper. The
  rules are written for an e-graph: those that open composites lose by themselves, so plain file
  order is often dearer than no rule at all, and guarded is the fairer comparison. Only rules that
  fired in the e-graph are tried, of two directions the first, in six rounds and two passes at most.
- Ops on parameters alone count as **ops**, so a folded batch norm has more of them after the rules.
"""


def describe(data: Mapping[str, Any]) -> str:
    """The page of what was measured."""
    lines = [_HEAD]
    for target in TARGETS:
        effects = [Effect(**row) for row in data["effects"] if row["target"] == target]
        lines += _table(target, effects)
    return "\n".join([*lines, *_ablation(data["ablation"])]) + "\n"


def _table(target: str, effects: Sequence[Effect]) -> list[str]:
    strict, guarded = (
        " and ".join(
            f"in {sum(getattr(one, way) > one.after * factor for one in effects)} {by}"
            for factor, by in ((1 + 1e-9, "at all"), (1.01, "by more than 1 %"))
        )
        for way in ("file_order", "guarded")
    )
    worse = sum(min(one.file_order, one.guarded) < one.after * (1 - 1e-9) for one in effects)
    lines = [
        f"\n## On the target {target}\n",
        f"Of {len(effects)} models the chosen graph is strictly cheaper than file order {strict}, "
        f"than guarded file order {guarded}; it is dearer than one of them in {worse}.\n",
        "| model | ops | kernels | bytes | cost | file order | guarded |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in effects:
        cells = (
            one.model,
            f"{one.ops[0]} → {one.ops[1]}",
            f"{one.kernels[0]} → {one.kernels[1]}",
            f"{one.bytes[0] / 1e6:.2f} → {one.bytes[1] / 1e6:.2f} MB",
            f"{one.before / one.after:.2f}",
            f"{one.file_order / one.after:.3f}",
            f"{one.guarded / one.after:.3f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ablation(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "\n## Without one folder of rules\n",
        "Predicted cost without the rules of a folder over that with all, on the target cpu, and "
        "in brackets how many more kernels there are. Graphs that no rule of the folder reaches "
        "stay 1.00.\n",
        f"| model | {' | '.join(FOLDERS)} |",
        f"|---|{'---|' * len(FOLDERS)}",
    ]
    for name in dict.fromkeys(row["model"] for row in rows):
        found = {row["without"]: row for row in rows if row["model"] == name}
        cells = [_without(found[""], found.get(folder)) for folder in FOLDERS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _without(whole: Mapping[str, Any], part: Mapping[str, Any] | None) -> str:
    if part is None:
        return ""
    more = part["kernels"] - whole["kernels"]
    return f"{part['cost'] / whole['cost']:.2f}" + (f" ({more:+})" if more else "")


def save(effects: Sequence[Mapping[str, Any]], ablation: Sequence[Mapping[str, Any]]) -> None:
    """Writes what `describe` takes, a row a line."""
    parts = []
    for name, rows in (("effects", effects), ("ablation", ablation)):
        parts.append(f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]")
    DATA.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def run(names: Sequence[str]) -> None:
    """Measures models (all, where none is named) and saves their rows beside those of others."""
    from .architectures import ARCHITECTURES  # noqa: PLC0415 - transformers is an extra

    asked = names or tuple(ARCHITECTURES)
    known = json.loads(DATA.read_text(encoding="utf-8")) if names and DATA.exists() else {}
    effects, ablation = (
        [row for row in known.get(part, ()) if row["model"] not in asked]
        for part in ("effects", "ablation")
    )
    for name in asked:
        print(name, flush=True)
        graphs = capture(name)
        effects += [asdict(effect(name, target, graphs)) for target in TARGETS]
        ablation += ablate(name, FOLDERS) if name in ABLATED else []
        save(effects, ablation)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/rules_that_pay.md.")
    parser.add_argument("--measure", nargs="*", metavar="MODEL", help="run models anew (all)")
    asked = parser.parse_args().measure
    if asked is not None:
        run(asked)
    data = json.loads(DATA.read_text(encoding="utf-8"))
    PAGE.write_text(describe(data), encoding="utf-8")


if __name__ == "__main__":
    main()
