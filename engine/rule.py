"""What a loaded rule file is: frozen dataclasses, one per kind of entry.

Takes nothing; gives the types that `load.load` fills. `Rule` (kind `rule`) rewrites tensor
graphs, `FuseRule` (kinds `fuse`, `forbid`, `avoid`, `prefer`) speaks about pairs of loop nests,
`ScalarEntry` (kind `scalar`) spells a scalar op per target, `OpEntry` (kind `op`) says what a
tensor op is, `DecomposeEntry` (kind `decompose`) names ops that torch itself decomposes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .expr import Expr, Span
from .source import Diagnostic

# From strict to loose; `random` stands apart and is only compared with itself.
NUMERICS = ("exact", "signed_zero", "fewer_roundings", "reassociate", "approximate", "random")
PROFILES = ("bitwise", "default", "fast")

DTYPE_WORDS: Mapping[str, tuple[str, ...]] = {
    "float": ("f16", "bf16", "f32", "f64"),
    "int": ("i8", "i16", "i32", "i64", "u8"),
    "num": ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8"),
    "any": (
        *("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8"),
        *("bool", "c64", "c128"),
    ),
    "bool": ("bool",),
}


@dataclass(frozen=True)
class TensorType:
    """`float[..., n]`. `dims` holds size expressions; `lead` is the name of the leading
    `...` (`""` for the plain one, `"a"` for `...a`) or None where there is none. `any_sizes`: a
    list (`list[float]`) whose tensors may each have sizes and a rank of their own."""

    dtypes: tuple[str, ...]
    dims: tuple[Expr, ...]
    lead: str | None = None
    is_list: bool = False
    any_sizes: bool = False


@dataclass(frozen=True)
class ConstType:
    """`const`, `const:int`, `const:float`, `const:bool`; also `dtype` and `dims`."""

    kind: str  # "any", "int", "float", "bool", "dtype", "dims"


VarType = TensorType | ConstType


@dataclass(frozen=True)
class Condition:
    expr: Expr
    text: str


@dataclass(frozen=True)
class Numerics:
    """The class per dtype kind (`int`, `float`), with tolerances for `approximate`."""

    float_class: str
    int_class: str
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Assumption:
    """`no_overflow`, `finite`, `no_nan`, `no_signed_zero`, or a comparison on values."""

    text: str
    expr: Expr | None = None
    witness: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One line of `fires` or `misses`: letters to sizes, variables to dtypes or constants."""

    values: Mapping[str, int | float | str | bool | tuple[int, ...]]
    span: Span


@dataclass(frozen=True)
class Rule:
    """One direction of a rewrite rule after families and `both_ways` are expanded.

    `match` and `make` map root names to expressions (a single root is called `out`); `lets`
    are named pieces of the right side in order.
    """

    name: str
    doc: str
    span: Span
    folder: str  # the folder under rules/ (or the user's file stem): "decompose", "algebra", ...
    vars: Mapping[str, VarType]
    match: Mapping[str, Expr]
    make: Mapping[str, Expr]
    lets: Mapping[str, Expr]
    when: tuple[Condition, ...]
    numerics: Numerics
    assumes: tuple[Assumption, ...] = ()
    checked: tuple[Assumption, ...] = ()  # those of `assumes` that folding verifies
    fires: tuple[Case, ...] = ()
    misses: tuple[Case, ...] = ()
    grad: bool = True
    device: Expr | str | None = None
    stage: str = "post_grad"  # pre_grad, trace, joint, post_grad
    text: str = ""  # the YAML text, part of every cache key
    ref: str = ""
    grows: bool = False  # the right side has more op nodes than the left

    @property
    def where(self) -> str:
        """`rules/attention/sdpa.yaml:12`, as printed in traces and kernel comments."""
        return f"{self.span.path}:{self.span.line}"


@dataclass(frozen=True)
class FuseRule:
    """A pair rule. `kind` is "fuse", "forbid", "avoid" or "prefer". Without a condition of
    `when` of a `fuse`, or without a `forbid`, results would be wrong; `worth` and `avoid` only
    say what pays."""

    kind: str
    name: str
    doc: str
    span: Span
    producer: str  # a kind of loop nest: pointwise, reduction, template, extern, any
    consumer: str
    when: tuple[Condition, ...]
    gain: Expr | None
    text: str = ""
    worth: tuple[Condition, ...] = ()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those of `when`, then those of `worth`."""
        return (*self.when, *self.worth)

    @property
    def where(self) -> str:
        return f"{self.span.path}:{self.span.line}"


@dataclass(frozen=True)
class ScalarEntry:
    """How one scalar op is spelled. `args` are x, y, z in order; templates use `$x`."""

    name: str
    doc: str
    span: Span
    args: tuple[str, ...]
    type: str  # "float -> same", "num, num -> same", "any, any -> bool", ...
    means: Expr | None
    cpp: Mapping[str, str]  # dtype class or dtype ("float", "f32", "int", "any") -> template
    triton: Mapping[str, str]
    widen: tuple[str, ...] = ()
    ulp: float = 0.0
    cost: float = 1.0  # flops
    text: str = ""


@dataclass(frozen=True)
class OpEntry:
    """What a tensor op is: its ATen overloads, its arguments, its meaning.

    `args` holds (name, default) pairs; the default is None when required. `as_` spells the
    op through another one (`transpose` through `permute`). `scalar` is the pointwise meaning
    in scalar ops; other ops are lowered by name (`lowering/lower.py`) or called.
    """

    name: str
    doc: str
    span: Span
    aten: tuple[str, ...]
    torch: tuple[str, ...]
    args: tuple[tuple[str, Expr | None], ...]
    commutes: bool = False
    scalar: Expr | None = None
    as_: Expr | None = None
    # "any" strides, "rows": the last dim of each operand has stride 1, "traced": as captured
    layout: str = "any"
    flops: float | None = None
    text: str = ""


@dataclass(frozen=True)
class DecomposeEntry:
    """ATen overloads that torch's reference decompositions open while AOTAutograd traces."""

    name: str
    doc: str
    span: Span
    folder: str
    aten: tuple[str, ...]
    numerics: Numerics
    ref: str = ""
    text: str = ""

    @property
    def where(self) -> str:
        return f"{self.span.path}:{self.span.line}"


@dataclass(frozen=True)
class RuleBook:
    """Everything that was loaded, in file order."""

    rules: tuple[Rule, ...] = ()
    fuse: tuple[FuseRule, ...] = ()
    scalars: tuple[ScalarEntry, ...] = ()
    ops: tuple[OpEntry, ...] = ()
    decompose: tuple[DecomposeEntry, ...] = ()
    hash: str = ""
    warnings: tuple[Diagnostic, ...] = ()
