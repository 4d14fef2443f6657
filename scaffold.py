"""A snippet as the outline of a rule.

Takes `before`, `after` and example inputs; gives an `Outline`: variables with their types,
both sides in the rule language, and what is still to be found out about it. Sizes become
letters by tracing the snippet at several sizes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from .capture import Captured, CaptureError, capture_graph
from .engine.dtypes import word_of
from .engine.encode import encode, value_of
from .engine.rule import DTYPE_WORDS
from .engine.spell import Numbers, Speller, SpellError
from .session import Session
from .snippet import Snippet

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)
_OTHER_CONSTANT = 0.75  # the second program has each constant times this
_LETTERS = "mnklhsdbcpqrtuvwxyzagefij"
_INDENT = "    "
# Kernels that torch picks for one function by device and input: a rule about one of them would
# be for this machine alone.
_PICKED = re.compile(r"\b_scaled_dot_product_\w+")

Sizes = Mapping[str, tuple[Any, ...]]  # per parameter: numbers, or expressions over symbols


@dataclass(frozen=True)
class TensorVar:
    """A variable: dtype word (`float`, `f32`), sizes outermost first, and whether `...`
    stands before them."""

    word: str
    dims: tuple[str, ...]
    lead: bool = False

    def __str__(self) -> str:
        return f"{self.word}[{', '.join([*(['...'] if self.lead else []), *self.dims])}]"


@dataclass(frozen=True)
class Outline:
    """A rule before it is written. `match` and `make` map roots to expressions; one root
    alone is called `out`. `exact` is the dtype word of the example per float variable."""

    name: str
    stage: str
    vars: Mapping[str, TensorVar | str]
    match: Mapping[str, str]
    make: Mapping[str, str]
    lets: Mapping[str, str]
    exact: Mapping[str, str]
    when: tuple[str, ...] = ()
    numerics: str = "reassociate"
    assumes: tuple[str, ...] = ()
    grad: bool = True
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The rule as YAML."""
        lines = [*(f"# {note}" for note in self.notes), f"- rule: {self.name}"]
        lines.append("  doc: TODO say in one plain sentence what this does and why it pays.")
        if self.stage != "post_grad":
            lines.append(f"  stage: {self.stage}")
        lines += ["  vars:", *(f"{_INDENT}{name}: {kind}" for name, kind in self.vars.items())]
        lines += _side("match", self.match)
        if self.when:
            lines += ["  when:", *(f"{_INDENT}- {condition}" for condition in self.when)]
        if self.lets:
            lines += ["  let:", *(f"{_INDENT}{name}: {text}" for name, text in self.lets.items())]
        lines += [*_side("make", self.make), f"  numerics: {self.numerics}"]
        if self.assumes:
            lines.append(f"  assumes: [{', '.join(self.assumes)}]")
        if not self.grad:
            lines.append("  grad: false")
        return "\n".join(lines) + "\n"


def _side(field: str, roots: Mapping[str, str]) -> list[str]:
    if list(roots) == ["out"]:
        return [f"  {field}: {roots['out']}"]
    return [f"  {field}:", *(f"{_INDENT}{name}: {text}" for name, text in roots.items())]


def outline_rule(
    name: str, snippet: Snippet, stage: str, session: Session, tell: Callable[[str], None]
) -> Outline:
    """The outline of a snippet for every size that it works with another value of; the others
    are those of the example. `tell` hears what is tried. Raises CaptureError or SpellError
    where rules cannot say it."""
    sizes: Sizes = {}
    problem = ""
    try:
        sizes = _sizes(snippet, stage, session)
        return _Outliner(name, snippet, stage, session, sizes).outline()
    except (CaptureError, SpellError) as error:
        problem = " ".join(str(error).split())
    tell(f"not every size may vary: {problem}")
    outline = _Outliner(name, snippet, stage, session, {}).outline()
    varying: list[sympy.Symbol] = []
    for symbol in _symbols(sizes):
        some = _fixed(sizes, snippet, [*varying, symbol])
        try:
            outline = _Outliner(name, snippet, stage, session, some).outline()
        except (CaptureError, SpellError) as error:
            tell(f"size {symbol} stays as it is: {error}")
        else:
            varying.append(symbol)
    note = f"The sizes that are numbers are those of the example: {problem}"
    return replace(outline, notes=(note,))


def _symbols(sizes: Sizes) -> list[sympy.Symbol]:
    """The free symbols in order of appearance."""
    found: dict[sympy.Symbol, None] = {}
    for size in itertools.chain.from_iterable(sizes.values()):
        if isinstance(size, sympy.Expr):
            found.update(dict.fromkeys(sorted(size.free_symbols, key=str)))
    return list(found)


def _own(sizes: Sizes, snippet: Snippet) -> dict[sympy.Symbol, int]:
    """What the symbols are in the example."""
    own: dict[sympy.Symbol, int] = {}
    for name, dims in sizes.items():
        for size, number in zip(dims, snippet.inputs[name].shape, strict=True):
            if isinstance(size, sympy.Symbol):
                own[size] = number
    return own


def _fixed(sizes: Sizes, snippet: Snippet, free: Sequence[sympy.Symbol]) -> Sizes:
    """The sizes with numbers for all symbols but `free`."""
    own = _own(sizes, snippet)
    numbers = {symbol: value for symbol, value in own.items() if symbol not in free}
    return {
        name: tuple(s.subs(numbers) if isinstance(s, sympy.Expr) else s for s in dims)
        for name, dims in sizes.items()
    }


def _sizes(snippet: Snippet, stage: str, session: Session) -> Sizes:
    """Per parameter its sizes: numbers, or expressions over symbols. Equal symbols are sizes
    that before and after need to be equal. Raises CaptureError."""

    def both(**inputs: Any) -> Any:
        return snippet.before(**inputs), snippet.after(**inputs)

    captured = capture_graph(both, snippet.inputs, stage, session, symbolic=True)
    found: dict[str, tuple[Any, ...]] = {}
    for node in captured.gm.graph.find_nodes(op="placeholder"):
        if node.name in captured.inputs:
            shape = value_of(node).shape
            found[captured.inputs[node.name]] = tuple(
                size.node.expr if isinstance(size, torch.SymInt) else size for size in shape
            )
    return found


class _Outliner:
    def __init__(
        self,
        name: str,
        snippet: Snippet,
        stage: str,
        session: Session,
        sizes: Sizes,
    ) -> None:
        self.name = name
        self.snippet = snippet
        self.stage = stage
        self.session = session
        self.sizes = sizes
        self.letters = self._letters()
        self.values = [self._assigned(shift) for shift in (0, 1)]
        self.numbers = Numbers(
            {
                letter: (self.values[0][symbol], self.values[1][symbol])
                for symbol, letter in self.letters.items()
            },
            {
                name: (value, value * _OTHER_CONSTANT)
                for name, value in snippet.inputs.items()
                if isinstance(value, float)
            },
        )

    def outline(self) -> Outline:
        counter = itertools.count(1)
        taken = {*self.snippet.inputs, *self.letters.values()}

        def let() -> str:
            return next(n for n in map("t{}".format, counter) if n not in taken)

        match = self._spell("before", self.snippet.before, None)
        make = self._spell("after", self.snippet.after, let)
        if len(match.roots) != len(make.roots):
            raise SpellError(
                f"before has {len(match.roots)} results and after has {len(make.roots)}"
            )
        unused = [name for name in self._tensors() if name not in match.used]
        if unused:
            raise SpellError(f"before does not use its parameter {', '.join(unused)}")
        plain = [text for text in match.roots if text in self.snippet.inputs]
        if plain:
            raise SpellError(f"before returns {plain[0]} as it is; a rule needs an op to look for")
        roots = ["out"] if len(match.roots) == 1 else self._root_names(len(match.roots), taken)
        return Outline(
            self.name,
            self.stage,
            self._vars(f"{' '.join(match.roots)} {' '.join(make.roots)}", make.lets),
            dict(zip(roots, match.roots, strict=True)),
            dict(zip(roots, make.roots, strict=True)),
            make.lets,
            {name: word_of(x.dtype) for name, x in self._tensors().items()},
        )

    def _root_names(self, count: int, taken: set[str]) -> list[str]:
        names = (n for n in map("out{}".format, itertools.count(1)) if n not in taken)
        return list(itertools.islice(names, count))

    def _tensors(self) -> dict[str, torch.Tensor]:
        inputs = self.snippet.inputs.items()
        return {name: x for name, x in inputs if isinstance(x, torch.Tensor)}

    def _vars(self, text: str, lets: Mapping[str, str]) -> dict[str, TensorVar | str]:
        found: dict[str, TensorVar | str] = {}
        text = " ".join([text, *lets.values()])
        for name, value in self.snippet.inputs.items():
            if isinstance(value, torch.Tensor):
                found[name] = TensorVar(_kind(value.dtype), tuple(self._dims(name, value)))
            elif isinstance(value, float) and name in _words(text):
                found[name] = "const"
        return found

    def _dims(self, name: str, value: torch.Tensor) -> Iterator[str]:
        shapes = [self._shape(name, value, values) for values in self.values]
        for pair in zip(*shapes, strict=True):
            yield self.numbers.spell(pair).text

    def _letters(self) -> dict[Any, str]:
        """A letter per free symbol, in order of appearance."""
        free = (letter for letter in _LETTERS if letter not in self.snippet.inputs)
        numbered = (f"n{i}" for i in itertools.count(1) if f"n{i}" not in self.snippet.inputs)
        return dict(zip(_symbols(self.sizes), itertools.chain(free, numbered), strict=False))

    def _assigned(self, shift: int) -> dict[Any, int]:
        """Values of the symbols: multiples of the example's sizes, no two alike, and greater
        where the example's are (a kernel must fit into its image)."""
        own = _own(self.sizes, self.snippet)
        ordered = sorted(self.letters, key=lambda symbol: own.get(symbol, 1))
        return {
            symbol: own.get(symbol, 1) * _PRIMES[(place + shift) % len(_PRIMES)]
            for place, symbol in enumerate(ordered)
        }

    def _shape(self, name: str, value: torch.Tensor, values: Mapping[Any, int]) -> tuple[int, ...]:
        return tuple(
            int(size.subs(values)) if isinstance(size, sympy.Expr) else int(size)
            for size in self.sizes.get(name, value.shape)
        )

    def _inputs(self, which: int) -> dict[str, Any]:
        """The example with the sizes and constants of one program, without its data."""
        found: dict[str, Any] = {}
        for name, value in self.snippet.inputs.items():
            if isinstance(value, torch.Tensor):
                shape = self._shape(name, value, self.values[which])
                found[name] = torch.empty(shape, dtype=value.dtype, device=value.device)
            else:
                found[name] = value
        for name, pair in self.numbers.constants.items():
            found[name] = pair[which]
        return found

    def _spell(self, label: str, fn: Callable[..., Any], let: Callable[[], str] | None) -> Any:
        try:
            captured = [self._capture(fn, which) for which in (0, 1)]
            encodings = [self._encode(one) for one in captured]
            speller = Speller(
                (encodings[0], encodings[1]),
                captured[0].inputs,
                self.numbers,
                self.stage == "pre_grad",
            )
            return speller.spell(let)
        except (CaptureError, SpellError) as error:
            raise type(error)(f"{label}: {error}") from error

    def _capture(self, fn: Callable[..., Any], which: int) -> Captured:
        inputs, earlier = self._inputs(which), fn is self.snippet.before
        return capture_graph(fn, inputs, self.stage, self.session, earlier=earlier)

    def _encode(self, captured: Captured) -> Any:
        encoding = encode(captured.gm, self.session.table)
        if encoding is None:
            raise SpellError("it has no tensors")
        return encoding


def picked_kernels(outline: Outline) -> list[str]:
    """Ops of either side that stand for one kernel of a torch function."""
    texts = (*outline.match.values(), *outline.lets.values(), *outline.make.values())
    return sorted({name for text in texts for name in _PICKED.findall(text)})


def _kind(dtype: torch.dtype) -> str:
    word = word_of(dtype)
    return next((kind for kind in ("float", "int") if word in DTYPE_WORDS[kind]), word)


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def leads(outline: Outline) -> Iterator[Outline]:
    """The outline with leading sizes as `...`, the most of them first."""
    tensors = {n: kind for n, kind in outline.vars.items() if isinstance(kind, TensorVar)}
    text = " ".join(
        (*outline.match.values(), *outline.make.values(), *outline.lets.values(), *outline.when)
    )
    longest = max((kind.dims for kind in tensors.values()), key=len, default=())
    for count in range(len(longest), 0, -1):
        lead = longest[:count]
        if any(_words(dim) & _words(text) or dim.isdigit() for dim in lead):
            continue
        led = {name: _led(kind, lead) for name, kind in tensors.items()}
        changed = {name: kind for name, kind in led.items() if kind is not None}
        if len(changed) == len(led):
            yield replace(outline, vars={**outline.vars, **changed})


def _led(kind: TensorVar, lead: Sequence[str]) -> TensorVar | None:
    """The variable without its `lead` sizes; None where they stand elsewhere."""
    starts = kind.dims[: len(lead)] == tuple(lead)
    rest = kind.dims[len(lead) :] if starts else kind.dims
    if any(_words(dim) & set(lead) for dim in rest):
        return None
    return TensorVar(kind.word, rest, starts)


def of_one_dtype(outline: Outline) -> Outline:
    """The outline for floats of one dtype, where the example's are: a mixture is rare, and
    hardly any two ways to compute something round it in the same places."""
    floats = [
        name
        for name, kind in outline.vars.items()
        if isinstance(kind, TensorVar) and kind.word == "float"
    ]
    if len(floats) < 2 or len({outline.exact[name] for name in floats}) > 1:
        return outline
    return replace(outline, when=(f"same_dtype({', '.join(floats)})", *outline.when))


def narrowed(outline: Outline) -> Outline:
    """The outline for the dtypes of the example alone."""
    changed = {
        name: TensorVar(outline.exact[name], kind.dims, kind.lead)
        if isinstance(kind, TensorVar) and kind.word == "float"
        else kind
        for name, kind in outline.vars.items()
    }
    when = tuple(text for text in outline.when if "dtype(" not in text)
    return replace(outline, vars=changed, when=when)


def ordered(outline: Outline) -> Outline:
    """The outline with the parameters that tell its roots apart in order, so that a match is
    found once and not once per order of the roots."""
    words = [_words(text) for text in outline.match.values()]
    own = [
        [name for name, kind in outline.vars.items() if isinstance(kind, TensorVar) and name in w]
        for w in words
    ]
    shared = set.intersection(*map(set, own)) if own else set()
    columns = list(zip(*([n for n in names if n not in shared] for names in own), strict=False))
    when = tuple(
        f"before({first}, {second})"
        for column in columns[-1:]
        for first, second in itertools.pairwise(column)
    )
    return replace(outline, when=(*outline.when, *when))
