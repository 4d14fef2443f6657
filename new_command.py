"""`eqsat new NAME`: a rule file to start from.

Takes a name and, with `--from`, a snippet; writes a rule that was loaded and checked, or an
empty template with comments. `new_rule` is the same for functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from .capture import CaptureError, capture_graph
from .config import config
from .engine.apply import EQUAL
from .engine.check import CheckResult
from .engine.profile import why_refused
from .engine.spell import SpellError
from .engine.stage import StageOptions
from .engine.why import why_not
from .measured import Measured, load_outline, measure
from .scaffold import Outline, outline_rule, picked_kernels
from .session import Session, open_session
from .snippet import Snippet, SnippetError, make_snippet, read_snippet
from .terminal import complain, print_plain

STAGES = ("post_grad", "pre_grad")
_SAME = "E603"
_SHOWN = 200  # characters of a side in what is told
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
    stage: str | None = None,
    examples: int = 100,
    tell: Callable[[str], None] = lambda _: None,
) -> NewRule:
    """The rule that replaces what `before` does by what `after` does.

    `example_inputs` is a tuple in the order of the parameters, or a dict; without it, defaults
    and annotations of `before` are used. Tensors become variables and floats constants; all
    else is part of the pattern. Sizes become letters where the functions work at other sizes.
    `stage` is "post_grad", "pre_grad", or None: post_grad, but for torch functions of which
    only a kernel is left there. `tell` hears what is tried. Raises ValueError (SnippetError,
    CaptureError, SpellError) where rules cannot say it.
    """
    _refuse_name(name, stage)
    snippet = make_snippet(before, after, example_inputs)
    return _made(name, snippet, stage, examples, tell)


def write_new_rule(
    name: str, source: str | None, out: str | None, stage: str | None, examples: int, *, force: bool
) -> int:
    """Write a rule file, then load and check it, and print what is tried and how that went.

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
        made = _made(name, read_snippet(Path(source)), stage, examples, _tell)
    except (SnippetError, CaptureError, SpellError, OSError) as error:
        return complain("new", error)
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


def _tell(text: str) -> None:
    print_plain(Console(stderr=True), f"  {text}")


def _refuse_name(name: str, stage: str | None) -> None:
    if not _NAME.match(name):
        raise SnippetError(f"'{name}' is not a name: write lower-case words joined by '-'")
    if stage is not None and stage not in STAGES:
        raise SnippetError(f"a rule can be made for stage {' or '.join(STAGES)}, not '{stage}'")


def _made(
    name: str, snippet: Snippet, stage: str | None, examples: int, tell: Callable[[str], None]
) -> NewRule:
    """The rule of a snippet. Raises CaptureError or SpellError."""
    session = open_session(config.snapshot(), lambda _: None)
    outline = _outline(name, snippet, stage, session, tell)
    tell(f"{outline.stage}: {_shown(outline.match)} -> {_shown(outline.make)}")
    measured = measure(outline, session.table, examples, tell)
    return _result(measured, snippet, session)


def _shown(roots: Mapping[str, str]) -> str:
    text = ", ".join(roots.values())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _outline(
    name: str, snippet: Snippet, stage: str | None, session: Session, tell: Callable[[str], None]
) -> Outline:
    """The outline for a stage; for the earlier one where torch has picked a kernel by the later
    and nobody asked for that."""
    outline = outline_rule(name, snippet, stage or STAGES[0], session, tell)
    kernels = picked_kernels(outline)
    if not kernels or outline.stage != STAGES[0]:
        return outline
    reason = f"after AOTAutograd a torch function is the kernel {', '.join(kernels)}"
    if stage is None:
        tell(f"{reason}; stage pre_grad sees the function")
        try:
            earlier = outline_rule(name, snippet, "pre_grad", session, tell)
        except (CaptureError, SpellError) as error:
            tell(f"but: {error}")
        else:
            return replace(earlier, notes=(*earlier.notes, f"For stage pre_grad: {reason}."))
    note = f"{reason[0].upper()}{reason[1:]}: --stage pre_grad is for the function itself."
    return replace(outline, notes=(*outline.notes, note))


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
    done = [miss.reason for miss in answer.misses if miss.reason.startswith(EQUAL)]
    if not answer.fired and done:
        return f"it is not needed for its example: {done[0]}"
    return "" if answer.fired else f"it does not fire on its example: {answer}"
