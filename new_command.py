"""`eqsat new NAME`: a rule file to start from.

Takes a name and, with `--from`, a snippet; writes a rule that was loaded and checked, or an
empty template with comments. `new_rule` is the same for functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from .capture import CaptureError, capture_graph
from .config import config
from .engine.check import CheckResult
from .engine.profile import why_refused
from .engine.spell import SpellError
from .engine.stage import StageOptions
from .engine.why import why_not
from .measured import Measured, load_outline, measure
from .scaffold import Outline, outline_rule
from .session import Session, open_session
from .snippet import Snippet, SnippetError, make_snippet, read_snippet
from .terminal import complain, print_plain

STAGES = ("post_grad", "pre_grad")
_SAME = "E603"
_NAME = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")
_TEMPLATE = """\
# Test it:  eqsat check {path}
# Use it:   EQSAT_RULES={path} eqsat explain my_script.py
# The guide is rules/README.md.

- rule: {name}
  doc: TODO say in one plain sentence what this does and why it pays.
  # ref: https://...            a paper, a link or an issue
  vars:                         # every free name: float, int, num, bool, any, const, dtype, dims
    x: float[..., n]            # the same letter is the same size; ... any leading sizes
    w: float[n]
  match: relu(x * w) * 2        # what is looked for
  # when:                       # all must hold
  #   - n % 2 == 0
  # let:                        # named parts of the right side
  #   scaled: w * 2
  make: relu(x * (w * 2))       # what it may become
  numerics: reassociate         # exact, signed_zero, fewer_roundings, reassociate, ...
  assumes: [no_overflow]        # inputs for which alone it holds; delete it where there are none
  # fires:                      # cases that must fire
  #   - {{n: 8}}
  # misses:                     # cases that must not
  #   - {{n: 7}}
"""


@dataclass(frozen=True)
class NewRule:
    """A rule made from two functions. `text` is its YAML; `ok` says that it loads and passes
    the check, `problems` what is wrong where it does not."""

    name: str
    text: str
    ok: bool
    numerics: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


def new_rule(
    before: Callable[..., Any],
    after: Callable[..., Any],
    example_inputs: Any = None,
    *,
    name: str = "new-rule",
    stage: str = "post_grad",
    examples: int = 30,
) -> NewRule:
    """The rule that replaces what `before` does by what `after` does.

    `example_inputs` is a tuple in the order of the parameters, or a dict; without it, defaults
    and annotations of `before` are used. Tensors become variables and floats constants; all
    else is part of the pattern. Sizes become letters where the functions work at other sizes.
    Raises ValueError (SnippetError, CaptureError, SpellError) where rules cannot say it.
    """
    _refuse_name(name, stage)
    snippet = make_snippet(before, after, example_inputs)
    session = _session()
    outline = outline_rule(name, snippet, stage, session)
    return _result(measure(outline, session.table, examples), snippet, session)


def write_new_rule(
    name: str, source: str | None, out: str | None, stage: str, examples: int, *, force: bool
) -> int:
    """Write a rule file, then load and check it, and print how that went.

    Gives the exit status: 0, 1 where the rule is not right as it stands, 2 where there is none.
    """
    path = Path(out or f"{name}.yaml")
    try:
        _refuse_name(name, stage)
        if path.exists() and not force:
            raise SnippetError(f"{path} exists already; --force writes over it")
        if source is None:
            path.write_text(_TEMPLATE.format(name=name, path=path), encoding="utf-8")
            print_plain(Console(), f"{path} written: a template, to be filled in")
            return 0
        snippet = read_snippet(Path(source))
        session = _session()
        outline = outline_rule(name, snippet, stage, session)
    except (SnippetError, CaptureError, SpellError, OSError) as error:
        return complain("new", error)
    made = _result(measure(outline, session.table, examples), snippet, session)
    path.write_text(made.text, encoding="utf-8")
    _report(made, path)
    return 0 if made.ok else 1


def _report(made: NewRule, path: Path) -> None:
    console = Console()
    print_plain(console, made.text)
    for problem in made.problems:
        print_plain(console, problem)
    for warning in made.warnings:
        print_plain(console, f"warning: {warning}")
    if made.ok:
        state = f"right as far as it was checked, as {made.numerics}"
        print_plain(console, f"{path} written: {state}. Now say in `doc` what it is for.")
    else:
        print_plain(console, f"{path} written, but the rule is not right yet; see above")


def _refuse_name(name: str, stage: str) -> None:
    if not _NAME.match(name):
        raise SnippetError(f"'{name}' is not a name: write lower-case words joined by '-'")
    if stage not in STAGES:
        raise SnippetError(f"a rule can be made for stage {' or '.join(STAGES)}, not '{stage}'")


def _session() -> Session:
    return open_session(config.snapshot(), lambda _: None)


def _result(measured: Measured, snippet: Snippet, session: Session) -> NewRule:
    outline = measured.outline
    check: CheckResult | None = measured.check
    problems = (measured.errors,) if check is None else check.failures
    if _SAME in measured.errors:
        hint = "after AOTAutograd both functions are the same ops"
        problems = (*problems, f"{hint}; --stage pre_grad sees them as they are written")
    warnings = () if check is None else check.warnings
    if measured.ok:
        silent = _why_silent(outline, snippet, session)
        warnings = (*warnings, *([silent] if silent else []))
    return NewRule(outline.name, outline.text(), measured.ok, outline.numerics, problems, warnings)


def _why_silent(outline: Outline, snippet: Snippet, session: Session) -> str:
    """Why the rule does not fire on its own example; empty where it does."""
    rule = load_outline(outline, session.table)
    profile = session.settings.numerics
    refused = why_refused(rule, profile)
    book = replace(session.book, rules=(*session.book.rules, rule))
    captured = capture_graph(snippet.before, snippet.inputs, outline.stage, session)
    placed = " ".join(outline.when)
    names = [node for node, parameter in captured.inputs.items() if f"{parameter}" in placed]
    options = StageOptions(
        profile=profile,
        weights={name: at for at, name in enumerate(names)},
        lowered=session.lowered,
        inference=True,
    )
    answer = why_not(captured.gm, outline.stage, book, session.table, rule.name, options)
    if refused:
        return refused
    return "" if answer.fired else f"it does not fire on its example: {answer}"
