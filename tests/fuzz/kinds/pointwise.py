"""Ops that work element by element."""

from __future__ import annotations

import torch

from ..draw import INTS, Draw, NoFit
from .table import kind

UNARY = """abs neg sin cos atan asinh erf exp expm1 tanh sigmoid relu floor ceil round trunc frac
sgn sign square exp2 positive isnan isinf isfinite signbit deg2rad sinc erfc i0 rad2deg
nan_to_num"""
POSITIVE = "sqrt rsqrt log log2 log10 log1p lgamma digamma reciprocal"
WITHIN_ONE = "asin acos atanh erfinv logit"
ACTIVATIONS = """gelu silu mish softplus hardtanh hardswish hardsigmoid leaky_relu elu selu celu
logsigmoid relu6 softsign tanhshrink softshrink hardshrink"""
ROUNDED = ("None", "'floor'", "'trunc'")


@kind(16)
def unary(d: Draw) -> str:
    return f"{d.new()} = torch.{d.choice(*UNARY.split())}({d.float()})"


@kind(6)
def unary_of_positive(d: Draw) -> str:
    offset = d.choice("0.5", "1", "0.01")
    return f"{d.new()} = torch.{d.choice(*POSITIVE.split())}({d.float()}.abs() + {offset})"


@kind(2)
def unary_within_one(d: Draw) -> str:
    return f"{d.new()} = torch.{d.choice(*WITHIN_ONE.split())}(torch.tanh({d.float()}) * 0.9)"


@kind(8)
def activation(d: Draw) -> str:
    name = d.choice(*ACTIVATIONS.split())
    more = ", approximate='tanh'" if name == "gelu" and d.chance(0.5) else ""
    return f"{d.new()} = F.{name}({d.float()}{more})"


@kind(2)
def activation_with_number(d: Draw) -> str:
    call = d.choice(
        "F.leaky_relu({}, 0.2)",
        "F.threshold({}, 0.1, -1.5)",
        "F.hardtanh({}, -0.5, 0.7)",
        "F.softplus({}, beta=2, threshold=3)",
        "F.elu({}, alpha=0.5)",
        "F.celu({}, alpha=1.3)",
        "torch.special.xlog1py({0}, {0}.abs())",
        "torch.special.entr({}.abs())",
    )
    return f"{d.new()} = {call.format(d.float())}"


@kind(2)
def glu(d: Draw) -> str:
    x = d.float(dims=1)
    return f"{d.new()} = F.glu({x}, {d.dim(x)})"


@kind(4)
def unary_of_integers(d: Draw) -> str:
    x = d.pick(lambda x: x.dtype in INTS or x.dtype == torch.bool)
    name = d.choice("abs", "neg", "bitwise_not", "sign", "square", "logical_not", "sqrt", "exp")
    return f"{d.new()} = torch.{name}({x})"


@kind(24)
def arithmetic(d: Draw) -> str:
    x = d.any()
    return f"{d.new()} = {x} {d.choice('+', '-', '*', '+', '*', '/')} {d.partner(x)}"


@kind(16)
def arithmetic_with_number(d: Draw) -> str:
    x, operator, number = d.any(), d.choice("+", "-", "*", "/"), d.number()
    return (
        f"{d.new()} = {number} {operator} {x}"
        if d.chance(0.3)
        else (f"{d.new()} = {x} {operator} {number}")
    )


@kind(6)
def arithmetic_with_alpha(d: Draw) -> str:
    x = d.any()
    y = d.number() if d.chance(0.2) else d.partner(x)
    return f"{d.new()} = torch.{d.choice('add', 'sub')}({x}, {y}, alpha={d.number()})"


@kind(8)
def binary(d: Draw) -> str:
    x = d.any()
    name = d.choice("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign")
    return f"{d.new()} = torch.{name}({x}, {d.partner(x)})"


@kind(3)
def rarer_binary(d: Draw) -> str:
    x = d.float()
    name = d.choice("logaddexp", "logaddexp2", "nextafter", "heaviside", "xlogy", "ldexp")
    if name == "xlogy":
        return f"{d.new()} = torch.xlogy({x}, {d.partner(x)}.abs() + 0.3)"
    return f"{d.new()} = torch.{name}({x}, {d.partner(x, same_dtype=True)})"


@kind(6)
def division(d: Draw) -> str:
    x = d.any()
    mode = d.choice(*ROUNDED)
    y = d.choice("3", "-2", "0.75") if d.chance(0.5) else f"({d.partner(x)}.abs() + 1)"
    name = d.choice("div", "div", "fmod", "remainder", "floor_divide", "true_divide")
    if name == "div":
        return f"{d.new()} = torch.div({x}, {y}, rounding_mode={mode})"
    return f"{d.new()} = torch.{name}({x}, {y})"


@kind(5)
def power(d: Draw) -> str:
    x = d.any()
    if d.chance(0.7):
        exponent = d.choice("2", "3", "0.5", "1", "0", "-1", "4", "2.5", "-2")
        base = x if exponent in ("2", "3", "1", "0", "4") else f"({x}.abs() + 0.3)"
        return f"{d.new()} = {base} ** {exponent}"
    return f"{d.new()} = torch.pow({x}.abs() + 0.2, {d.partner(x)}.clamp(-2, 2))"


@kind(5)
def bits(d: Draw) -> str:
    x = d.integer()
    if d.chance(0.3):
        return f"{d.new()} = {x} {d.choice('<<', '>>')} {d.choice('1', '2')}"
    y = d.choice("3", "1") if d.chance(0.3) else d.partner(x, same_dtype=True)
    return f"{d.new()} = {x} {d.choice('&', '|', '^')} {y}"


@kind(2)
def whole_numbers(d: Draw) -> str:
    x = d.integer()
    return f"{d.new()} = " + d.choice(
        f"torch.gcd({x}, {d.partner(x, same_dtype=True)})",
        f"{x} // {d.choice('2', '3', '-2')}",
        f"{x} % {d.choice('3', '-3', '5')}",
        f"torch.lcm({x}, {d.partner(x, same_dtype=True)})",
    )


@kind(12)
def comparison(d: Draw) -> str:
    x = d.any()
    other = d.number() if d.chance(0.4) else d.partner(x)
    return f"{d.new()} = {x} {d.choice('<', '<=', '>', '>=', '==', '!=')} {other}"


@kind(3)
def closeness(d: Draw) -> str:
    x = d.float()
    return f"{d.new()} = torch.isclose({x}, {d.partner(x, same_dtype=True)}, atol=0.1)"


@kind(5)
def logic(d: Draw) -> str:
    x = d.boolean() if d.chance(0.7) else d.any()
    y = d.partner(x)
    if d[x].dtype == torch.bool and d[y].dtype == torch.bool and d.chance(0.6):
        return f"{d.new()} = " + d.choice(f"{x} & {y}", f"{x} | {y}", f"{x} ^ {y}", f"~{x}")
    name = d.choice("logical_and", "logical_or", "logical_xor")
    return f"{d.new()} = torch.{name}({x}, {y})"


@kind(8)
def where(d: Draw) -> str:
    mask = d.boolean()
    x = d.partner(mask, test=lambda x: x.dtype != torch.bool) if d.chance(0.3) else d.any()
    other = d.number() if d.chance(0.4) else d.partner(x)
    pair = f"{x}, {other}" if d.chance(0.7) else f"{other}, {x}"
    return f"{d.new()} = torch.where({mask}, {pair})"


@kind(5)
def where_of_comparison(d: Draw) -> str:
    x = d.any()
    y = d.partner(x)
    return f"{d.new()} = torch.where({x} > {y}, {x}, {d.choice(y, '0', f'-{x}')})"


@kind(4)
def masked_fill(d: Draw) -> str:
    mask = d.boolean()
    x = d.partner(mask, test=lambda x: x.dtype != torch.bool)
    return f"{d.new()} = {x}.masked_fill({mask}, {d.choice('0', '1.5', '-2')})"


@kind(6)
def clamp(d: Draw) -> str:
    x = d.any()
    if d.chance(0.2):
        return f"{d.new()} = torch.clamp({x}, {d.partner(x)}, {d.partner(x)})"
    bounds = d.choice("-1, 1", "min=0", "max=0.5", "-0.5, 2", "0, 3", "min=-1.5")
    return f"{d.new()} = torch.clamp({x}, {bounds})"


@kind(4)
def several_operands(d: Draw) -> str:
    x = d.float()
    y, z = d.partner(x, same_dtype=True), d.partner(x, same_dtype=True)
    return f"{d.new()} = " + d.choice(
        f"torch.lerp({x}, {y}, 0.3)",
        f"torch.lerp({x}, {y}, {z})",
        f"torch.addcmul({x}, {y}, {z}, value={d.number()})",
        f"torch.addcdiv({x}, {y}, {z}.abs() + 1, value=0.5)",
    )


@kind(12)
def cast(d: Draw) -> str:
    x, dtype = d.any(), d.dtype()
    whole = not dtype.startswith(("torch.float", "torch.bfloat", "torch.bool"))
    if whole and d[x].is_floating_point():  # what others give is not defined
        low = "0" if dtype == "torch.uint8" else "-50"
        return f"{d.new()} = {x}.nan_to_num(0).clamp({low}, 50).to({dtype})"
    return f"{d.new()} = {x}.to({dtype})"


@kind(4)
def cast_by_name(d: Draw) -> str:
    x = d.any()
    names = ["float()", "double()", "bool()", "bfloat16()", "half()"]
    return f"{d.new()} = {x}.{d.choice(*names)}"


@kind(2)
def cast_like_another(d: Draw) -> str:
    x = d.pick(lambda x: not x.is_floating_point())
    return f"{d.new()} = {x}.type_as({d.any()})"


@kind(2)
def rounded_and_back(d: Draw) -> str:
    x = d.float()
    there, back = d.choice("bfloat16", "float16"), str(d[x].dtype)
    return f"{d.new()} = {x}.to(torch.{there}).to({back})"


@kind(3)
def prelu(d: Draw) -> str:
    x = d.float(dims=2)
    weight = d.pick(lambda w: w.dtype == d[x].dtype and w.dim() == 1)
    if d[weight].shape[0] not in (1, d[x].shape[1]):
        raise NoFit
    return f"{d.new()} = F.prelu({x}, {weight})"


@kind(2)
def decimals(d: Draw) -> str:
    return f"{d.new()} = torch.round({d.float(wide=True)}, decimals={d.choice('1', '2', '0')})"


@kind(3)
def detached(d: Draw) -> str:
    return f"{d.new()} = {d.float()}.detach() * {d.number()}"
