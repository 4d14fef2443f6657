"""Random programs: `generate(seed)` gives the same program for the same seed, whatever ran
before it.

Every program takes part of the kinds of ops only, each with a weight of its own: programs of
few kinds of ops reach combinations that even mixtures do not.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import replace

import torch

from . import inputs
from .draw import FLOATS, INTS, Draw, NoFit, new_env
from .kinds import creation, indexing, mutation, pointwise, products, reductions, views
from .kinds.table import KINDS, WEIGHTS
from .outcome import run_eager
from .programs import Input, Program, Settings, Statement

MODULES = (creation, indexing, mutation, pointwise, products, reductions, views)
RANDOM = frozenset(("random_numbers", "random_like", "dropout", "random_order", "random_in_place"))
MUTATION = frozenset(name for name in KINDS if KINDS[name].__module__ == mutation.__name__)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 64)
_SIZE_WEIGHTS = (5, 6, 6, 6, 6, 4, 4, 4, 2, 2, 2, 2, 1, 1)
_TRIES = 8  # per statement
# Errors that depend on data: what the compiler cannot see before it runs.
_RAISING = (
    "{new} = {x}[torch.arange({x}.shape[0]) + 1]",
    "{new} = torch.index_select({x}, 0, torch.arange({x}.shape[0]) - 1)",
    "{new} = torch.arange({x}.shape[0]) // torch.arange({x}.shape[0])",
    "{new} = torch.gather({x}, 0, torch.full_like({x}, 99).long())",
)


def generate(seed: int) -> Program:
    """A program whose statements have run, in eager, on its own inputs."""
    rng = random.Random(seed)
    settings = _settings(rng)
    d = Draw(rng, dynamic=rng.random() < 0.25, wild=rng.random() < 0.15)
    sizes = tuple(f"n{k}" for k in range(rng.randrange(2, 5)))
    calls = [_call(rng, len(sizes))]
    if d.dynamic:
        calls.append(_call(rng, len(sizes)))
    elif rng.random() < 0.3:
        calls.append(calls[0])
    if d.dynamic and rng.random() < 0.6:
        settings = replace(settings, dynamic=True)
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings(), getattr(torch, settings.grad_mode)():
            warnings.simplefilter("ignore")
            given = _inputs(d, sizes, calls, settings)
            statements = _statements(d)
    finally:
        torch.random.set_rng_state(torch_state)
    outputs = _outputs(d, given, statements, settings)
    program = Program(sizes, tuple(calls), tuple(given), tuple(statements), outputs, settings)
    if settings.backward and any(outcome.error is not None for outcome in run_eager(program)):
        return _without_gradients(program)  # e.g. an op without a derivative
    return program


def _without_gradients(program: Program) -> Program:
    plain = (replace(i, text=i.text.removesuffix(".requires_grad_()")) for i in program.inputs)
    return replace(program, inputs=tuple(plain)).with_settings(backward=False)


def _settings(rng: random.Random) -> Settings:
    grad_mode = rng.choices(["enable_grad", "no_grad", "inference_mode"], [80, 10, 10])[0]
    extraction = "cheapest"
    if rng.random() < 0.25:
        extraction = "worst" if rng.random() < 0.3 else f"random:{rng.randrange(1000)}"
    return Settings(
        backward=grad_mode == "enable_grad" and rng.random() < 0.35,
        grad_mode=grad_mode,
        extraction=extraction,
        interpreted=rng.random() < 0.25,
    )


def _call(rng: random.Random, count: int) -> tuple[int, ...]:
    drawn = rng.choices(SIZES, _SIZE_WEIGHTS, k=count)
    if rng.random() < 0.06:
        drawn[rng.randrange(count)] = 0
    return tuple(drawn)


# Inputs.


def _inputs(
    d: Draw, sizes: tuple[str, ...], calls: list[tuple[int, ...]], settings: Settings
) -> list[Input]:
    d.envs = [
        {**new_env(), "tensor": inputs.tensor, **dict(zip(sizes, c, strict=True))} for c in calls
    ]
    given: list[Input] = []
    home = d.rng.choices(sizes, k=d.rng.randrange(1, 4))
    for place in range(d.rng.randrange(2, 7)):
        name = "abcdegh"[place]
        for _ in range(20):
            text = _input_text(d, home, sizes, place, settings)
            if d.attempt(f"{name} = {text}"):
                given.append(Input(name, text))
                break
    for env in d.envs:
        for name in (*sizes, "tensor"):
            del env[name]
    return given


def _input_text(
    d: Draw, home: list[str], sizes: tuple[str, ...], place: int, settings: Settings
) -> str:
    rng = d.rng
    if place >= 2 and d.chance(0.06):
        return rng.choice(["3", "2.5", "True", "-1", "0.1"])
    if place and d.chance(0.08) and not settings.backward:
        other = d.any()
        return rng.choice([other, f"{other}[1:]", f"{other}.t()", f"{other}.view(-1)"])
    dtype = FLOATS[0] if not place else _input_dtype(rng)
    values, layout = "tame", "dense"
    if d.chance(0.2):
        values = "ties"
    if d.wild and d.chance(0.5):
        values = "special"
    if d.chance(0.35):
        layout = rng.choice(inputs.LAYOUTS[1:])
    shape = _input_shape(rng, home, sizes)
    seed = rng.randrange(10**6)
    text = f"tensor(({', '.join(shape)}{',' * (len(shape) == 1)}), {dtype}, {seed}"
    text += f", {values!r}, {layout!r})" if (values, layout) != ("tame", "dense") else ")"
    grad = settings.backward and dtype.is_floating_point and d.chance(0.7)
    return f"{text}.requires_grad_()" if grad else text


def _input_dtype(rng: random.Random) -> torch.dtype:
    return rng.choices([*FLOATS, *INTS, torch.bool], [50, 6, 5, 7, 14, 5, 1, 1, 1, 8])[0]


def _input_shape(rng: random.Random, home: list[str], sizes: tuple[str, ...]) -> list[str]:
    form = rng.random()
    if form < 0.4:
        return list(home)
    if form < 0.55:
        return home[rng.randrange(len(home)) :]
    if form < 0.65:
        return [size if rng.random() < 0.5 else "1" for size in home]
    if form < 0.75:
        return [rng.choice(sizes), home[-1]]
    if form < 0.8:
        return []
    return rng.choices([*sizes, "3", "2"], k=rng.randrange(1, 5))


# Statements and outputs.


def _statements(d: Draw) -> list[Statement]:
    weights = _weights(d.rng)
    wanted = min(60, max(5, int(d.rng.lognormvariate(2.5, 0.6))))
    raises = d.chance(0.02)
    statements: list[Statement] = []
    for _ in range(wanted * _TRIES):
        if len(statements) >= wanted:
            break
        name = d.rng.choices(list(weights), list(weights.values()))[0]
        statement = _draw_statement(d, name)
        if statement is not None:
            statements.append(statement)
    if raises:
        statements += _raising_statement(d)
    return statements


def _weights(rng: random.Random) -> dict[str, float]:
    part = rng.choice([0.3, 0.6, 1.0])
    with_random, with_mutation = rng.random() < 0.2, rng.random() < 0.5
    found: dict[str, float] = {}
    for name, weight in WEIGHTS.items():
        kept = rng.random() < part
        factor = rng.choice([0.5, 1, 1, 3])
        allowed = (with_random or name not in RANDOM) and (with_mutation or name not in MUTATION)
        if kept and allowed:
            found[name] = weight * factor
    return found or dict(WEIGHTS)


def _draw_statement(d: Draw, name: str) -> Statement | None:
    try:
        text = KINDS[name](d)
    except (NoFit, IndexError, ValueError):
        return None
    return Statement(text, name) if text is not None and d.attempt(text) else None


def _raising_statement(d: Draw) -> list[Statement]:
    try:
        x = d.pick(lambda x: x.dim() >= 1 and x.numel() > 0)
    except NoFit:
        return []
    text, new = d.rng.choice(_RAISING), d.new()
    for env in d.envs:
        env[new] = torch.zeros(())  # never had: the statement raises
    d.order.append(new)
    return [Statement(text.format(new=new, x=x), "raising")]


def _outputs(
    d: Draw, given: list[Input], statements: list[Statement], settings: Settings
) -> tuple[str, ...]:
    """Most results that no statement reads; also a few others, inputs and doubles."""
    names = [entry.name for entry in given]
    made = [name for name in d.order if name not in names]
    read = set().union(*(statement.reads() for statement in statements), ())
    ends = [name for name in made if name not in read and d.chance(0.85)]
    outputs = d.rng.sample(ends, min(len(ends), 8)) or d.order[-1:]
    outputs += d.rng.choices(d.order, k=d.rng.randrange(3))
    if settings.backward:
        outputs += [name for name in made if d[name].requires_grad][-1:]
    d.rng.shuffle(outputs)
    return tuple(outputs)
