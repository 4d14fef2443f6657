"""The command line: `eqsat COMMAND`, `python -m eqsat COMMAND`, `python -m engine COMMAND`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

_PROGRAM = "SCRIPT.py, or module:function (a function without arguments)"
_EXAMPLES = """examples:
  eqsat explain train.py                        what the rules did to a script
  eqsat explain train.py --why-not qkv-merge    what kept a rule from it
  eqsat new my-rule --from snippet.py           a rule from two torch functions
  eqsat lint my_rules.yaml                      are they written well?
  eqsat check my_rules.yaml                     are the rules right?
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status. Usage errors exit with status 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqsat",
        description="Inspect, write and test rules.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_explain(_command(commands, "explain", "what the rules did to a program", _explain))
    _add_check(_command(commands, "check", "test that rules are right", _check))
    _add_new(_command(commands, "new", "write a rule file to start from", _new))
    _add_rules(_command(commands, "rules", "list, show and count the rules", _rules_list))
    _add_lint(_command(commands, "lint", "say what is wrong with rule files", _lint))
    _add_calibrate(
        _command(commands, "calibrate", "measure this machine for the cost model", _calibrate)
    )
    _command(commands, "schema", "write the editor schemas and the tables of the guide", _schema)
    return parser


def _command(
    commands: Any, name: str, doc: str, run: Callable[[argparse.Namespace], int], **how: Any
) -> argparse.ArgumentParser:
    """A subcommand; `doc` is its line in the list and the head of its own help."""
    text = f"{doc[0].upper()}{doc[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=doc, description=text, **how)
    parser.set_defaults(run=run, parser=parser)
    return parser


def _add_explain(explain: argparse.ArgumentParser) -> None:
    explain.add_argument("program", nargs="?", help=_PROGRAM)
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.add_argument("--all", action="store_true", help="every rule, kernel and node")
    explain.add_argument("--rejected", action="store_true", help="list every pair not fused")
    explain.add_argument("--node", metavar="NAME", help="only pairs not fused with this node")
    explain.add_argument("--html", metavar="FILE", help="write a page for a browser")
    why = explain.add_argument_group("why a rule did not fire")
    why.add_argument("--why-not", metavar="RULE", help="say what kept this rule from the program")
    why.add_argument("--at", metavar="NODE", help="only at this node, named as in the graph")
    why.add_argument("--stage", help="ask at this stage (default: the rule's own)")
    why.add_argument("--graph", type=int, metavar="N", help="only in this graph, numbered as shown")
    two = explain.add_argument_group("what differs between two runs")
    two.add_argument("--diff", nargs=2, metavar=("A", "B"), help="two files of explain --json")
    two.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="run again with this option, as numerics=fast, and print what differs",
    )
    two.add_argument(
        "--disable",
        action="append",
        default=[],
        metavar="RULE",
        help="run again without this rule (or glob), and print what differs",
    )


def _add_check(check: argparse.ArgumentParser) -> None:
    check.add_argument("paths", nargs="+", help="rule files or folders")
    check.add_argument("--examples", type=int, default=30, help="examples drawn per rule")
    check.add_argument("--seed", type=int, default=0)
    check.add_argument("--only", action="append", default=[], help="rule name or glob")
    check.add_argument(
        "--compiled",
        type=_count_or_all,
        default="8",
        metavar="N",
        help="compile the sides of N of the rules and run them (default 8), or of all",
    )
    check.add_argument(
        "--no-compiled", dest="compiled", action="store_const", const="0", help="compile none"
    )
    check.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes that check rules (default: one per core; 0: none but this one)",
    )
    check.add_argument("--limit", type=float, metavar="SECONDS", help="stop a rule after that long")


def _add_calibrate(calibrate: argparse.ArgumentParser) -> None:
    calibrate.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    calibrate.add_argument(
        "--write", metavar="FILE", help="write to FILE, not to what later compiles use"
    )
    calibrate.add_argument(
        "--remove", action="store_true", help="forget what was measured: use the built-in numbers"
    )


def _add_lint(lint: argparse.ArgumentParser) -> None:
    lint.add_argument("paths", nargs="*", help="rule files or folders")
    lint.add_argument("--strict", action="store_true", help="warnings count as errors")
    lint.add_argument("--json", action="store_true", help="print JSON, for editors")
    lint.add_argument("--explain", metavar="CODE", help="what a code means, as E606; or: all")
    lint.add_argument("--codes", action="store_true", help="list the codes with their meanings")


def _add_new(new: argparse.ArgumentParser) -> None:
    new.add_argument("name", help="the rule's name: lower-case words joined by '-'")
    new.add_argument(
        "--from",
        dest="source",
        metavar="SNIPPET.py",
        help="a file that defines before(...) and after(...), with example inputs as defaults, as"
        ' annotations (x: "float[2, 8]") or as inputs = (...); without it: an empty template',
    )
    new.add_argument("--out", metavar="FILE", help="where to write (default: NAME.yaml)")
    new.add_argument("--force", action="store_true", help="write over a file that exists")
    new.add_argument(
        "--stage",
        help="post_grad or pre_grad (default: post_grad, unless only a kernel is left there)",
    )
    new.add_argument("--examples", type=int, default=100, help="examples drawn to check it")


def _add_rules(rules: argparse.ArgumentParser) -> None:
    rules.set_defaults(paths=[], name=None, stage=None, folder=None, numerics=None)
    rules.add_argument(
        "--coverage",
        action="store_true",
        help="print which rules of other compilers are here, and which of ours fire in no model",
    )
    rules.add_argument("--json", action="store_true", help="print JSON")
    parts = rules.add_subparsers(metavar="list | show | stats | fired | overlaps")
    listed = _command(parts, "list", "list the rules (the default)", _rules_list)
    listed.add_argument("name", nargs="?", help="only this rule or glob: '*-merge', 'attention/*'")
    listed.add_argument("--stage", help="only of this stage (or fuse, forbid, avoid, prefer)")
    listed.add_argument("--folder", help="only of this folder under rules/")
    listed.add_argument("--numerics", help="only of this numerics class")
    show = _command(parts, "show", "print a rule as it is written", _rules_show)
    show.add_argument("name", help="a rule, with its family and both directions")
    show.add_argument(
        "--expanded", action="store_true", help="also its members, canonical ops and egglog query"
    )
    stats = _command(parts, "stats", "count rules and the ops that they use", _rules_stats)
    fired = _command(parts, "fired", "count how often rules fire in programs", _rules_fired)
    fired.add_argument(
        "programs",
        nargs="*",
        help=f"{_PROGRAM}, or a model of benchmarks/models.py (default: all of these)",
    )
    fired.add_argument("--never", action="store_true", help="only the rules that never fired")
    same = _command(parts, "overlaps", "find rules that say the same as others", _rules_overlaps)
    same.add_argument(
        "paths",
        nargs="*",
        help="rule files or folders (default: the built-in rules among each other)",
    )
    for parser in (listed, show, stats):
        parser.add_argument(
            "--rules",
            dest="paths",
            action="append",
            default=[],
            metavar="PATH",
            help="also the rules of this file or folder",
        )
    for parser in (listed, show, stats, fired, same):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _explain(options: argparse.Namespace) -> int:
    if options.diff:
        from .difference import compare_files  # noqa: PLC0415 - only this command needs torch

        return compare_files(*options.diff, json_output=options.json)
    if options.program is None:
        options.parser.error("name a program, or two files after --diff")
    if options.why_not:
        from .why_command import Question, explain_why_not  # noqa: PLC0415

        question = Question(options.why_not, options.at, options.stage, options.graph)
        return explain_why_not(options.program, question, json_output=options.json)
    if options.at or options.stage or options.graph is not None:
        options.parser.error("--at, --stage and --graph belong to --why-not RULE")
    if options.node is not None and not options.rejected:
        options.parser.error("--node belongs to --rejected")
    if options.against or options.disable:
        from .difference import compare_options  # noqa: PLC0415

        return compare_options(
            options.program, options.against, options.disable, json_output=options.json
        )
    if options.html:
        from .page_command import write_page  # noqa: PLC0415

        return write_page(options.program, options.html)
    from .explanation import explain_program  # noqa: PLC0415

    return explain_program(
        options.program,
        json_output=options.json,
        rejected=options.rejected,
        everything=options.all,
        node=options.node,
    )


def _count_or_all(text: str) -> str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number or all, not {text!r}")
    return text


def _check(options: argparse.Namespace) -> int:
    from .check_command import CheckSettings, check_paths  # noqa: PLC0415

    compiled = None if options.compiled == "all" else int(options.compiled)
    settings = CheckSettings(
        options.only, options.examples, options.seed, compiled, options.jobs, options.limit
    )
    return check_paths(options.paths, settings)


def _new(options: argparse.Namespace) -> int:
    from .new_command import write_new_rule  # noqa: PLC0415

    return write_new_rule(
        options.name,
        options.source,
        options.out,
        options.stage,
        options.examples,
        force=options.force,
    )


def _rules_list(options: argparse.Namespace) -> int:
    if options.coverage:
        from .coverage_command import print_coverage  # noqa: PLC0415

        return print_coverage(json_output=options.json)
    from .rules_command import Filter, list_rules  # noqa: PLC0415

    wanted = Filter(options.name, options.stage, options.folder, options.numerics)
    return list_rules(options.paths, wanted, json_output=options.json)


def _rules_show(options: argparse.Namespace) -> int:
    from .rules_command import show_rule  # noqa: PLC0415

    return show_rule(
        options.name, options.paths, expanded=options.expanded, json_output=options.json
    )


def _rules_stats(options: argparse.Namespace) -> int:
    from .rules_command import count_rules  # noqa: PLC0415

    return count_rules(options.paths, json_output=options.json)


def _rules_fired(options: argparse.Namespace) -> int:
    from .fired_command import count_firings  # noqa: PLC0415

    return count_firings(options.programs, never=options.never, json_output=options.json)


def _rules_overlaps(options: argparse.Namespace) -> int:
    from .overlaps_command import print_overlaps  # noqa: PLC0415

    return print_overlaps(options.paths, json_output=options.json)


def _lint(options: argparse.Namespace) -> int:
    from .lint_command import explain_code, lint_paths, list_codes  # noqa: PLC0415

    if options.codes or options.explain == "all":
        return list_codes()
    if options.explain is not None:
        return explain_code(options.explain)
    if not options.paths:
        options.parser.error("name rule files or folders, or a code with --explain")
    return lint_paths(options.paths, options.strict, options.json)


def _calibrate(options: argparse.Namespace) -> int:
    from .calibrate_command import calibrate_machine  # noqa: PLC0415

    return calibrate_machine(options.device, options.write, remove=options.remove)


def _schema(_: argparse.Namespace) -> int:
    from .schema_command import update_schemas  # noqa: PLC0415

    return update_schemas()
