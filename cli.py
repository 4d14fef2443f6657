"""The command line: `eqsat COMMAND`, `python -m eqsat COMMAND`, `python -m engine COMMAND`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status. Usage errors exit with status 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eqsat", description="Inspect and test rules.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="what the rules did to a program")
    explain.add_argument("program", help="SCRIPT.py or module:function")
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.add_argument("--rejected", action="store_true", help="list every pair not fused")
    explain.set_defaults(run=_explain)
    check = commands.add_parser("check", help="test that rules are right")
    check.add_argument("paths", nargs="+", help="rule files or folders")
    check.add_argument("--examples", type=int, default=30, help="examples drawn per rule")
    check.add_argument("--seed", type=int, default=0)
    check.add_argument("--only", action="append", default=[], help="rule name or glob")
    check.set_defaults(run=_check)
    rules = commands.add_parser("rules", help="list the rules")
    rules.add_argument("paths", nargs="*", help="further rule files or folders")
    rules.set_defaults(run=_rules)
    schema = commands.add_parser("schema", help="write the editor schemas of rule files")
    schema.set_defaults(run=_schema)
    return parser


def _explain(options: argparse.Namespace) -> int:
    from .explain import explain_program  # noqa: PLC0415 - only this command needs torch.compile

    return explain_program(options.program, json_output=options.json, rejected=options.rejected)


def _check(options: argparse.Namespace) -> int:
    from .commands import check_paths  # noqa: PLC0415

    return check_paths(options.paths, options.only, options.examples, options.seed)


def _rules(options: argparse.Namespace) -> int:
    from .commands import list_rules  # noqa: PLC0415

    return list_rules(options.paths)


def _schema(_: argparse.Namespace) -> int:
    from .commands import update_schemas  # noqa: PLC0415

    return update_schemas()
