"""What a machine can do, in the few numbers that the cost model and code generation read.

Takes `rules/targets/NAME.yaml`, or a file of the user; gives a frozen `Target`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from .block_choices import BlockChoices
from .choices import Section, read_choices
from .files import RULES
from .loop_choices import LoopChoices
from .rule import DTYPE_WORDS
from .settings import Settings, read_settings

# What shapes kernels, and the built-in target that has all of it.
SECTIONS = {"loops": "cpu", "blocks": "h200"}
_NO_NUMBERS = ("name", "device", "flops", *SECTIONS)
_WHOLE = ("units", "tile")


@dataclass(frozen=True)
class Target:
    """Rates per second, times in seconds, sizes in bytes.

    `flops` is the peak of matrix products per dtype, `scalar_flops` that of elementwise
    work. `units` is how many parts of a product are computed at once (cores, streaming
    multiprocessors), `tile` the most elements of a result that one of them holds. `launch` is
    the fixed price of a generated kernel, `extern` that of a call into ATen. `reduction` is the
    share of a launch that one reduction pays, since neighbours of one domain become one kernel.
    `strided` is how much longer it takes to read rows that lie apart, as a share of their
    traffic. `view` is what keeping one more node costs at all, `memory` the price of a byte of a
    constant folded at compile time. `loops` shapes the loops of kernels, `blocks` what the
    programs of a GPU's kernel share out among them.
    """

    name: str
    device: str
    bandwidth: float
    cache_bandwidth: float
    cache: float
    flops: Mapping[str, float]
    scalar_flops: float
    units: float
    tile: float
    launch: float
    extern: float
    reduction: float
    strided: float
    view: float
    memory: float
    loops: LoopChoices
    blocks: BlockChoices

    def matrix_rate(self, dtype: str) -> float:
        """Peak matrix flops for a dtype; `any` where the file does not list it."""
        return self.flops.get(dtype, self.flops["any"])

    def traffic(self, size: float, cold: float = 0.0) -> float:
        """Seconds to move `size` bytes, of which `cold` ones are not in the cache yet: all
        through the cache, and from memory those and what the cache cannot hold."""
        beyond = cold + max(0.0, size - cold - self.cache)
        return max(size / self.cache_bandwidth, beyond / self.bandwidth)


@lru_cache(maxsize=16)
def load_target(name: str, folder: Path | None = None) -> Target:
    """The target called `name`; a device type without a file of its own is `generic`.

    Raises RuleErrors with every mistake and its place.
    """
    base = folder or RULES / "targets"
    path = base / f"{name}.yaml"
    return read_target(path if path.exists() else base / "generic.yaml")


def named_target(name: str) -> Target:
    """The built-in target of that name, else the one in that file. Raises RuleErrors."""
    built_in = RULES / "targets" / f"{name}.yaml"
    return read_target(built_in if built_in.exists() else Path(name))


def read_target(path: Path) -> Target:
    """The target in a file. What the file leaves out is that of its `base`, a built-in target;
    `loops` and `blocks` may always be left out, or some of them: they are those of `base`, or of
    `cpu` and `h200`.

    Raises RuleErrors with every mistake and its place.
    """
    settings = read_settings(path)
    known = [field.name for field in fields(Target)]
    settings.only(("doc", "base", *known), "a target")
    base = _base(settings)
    if base is None:
        settings.need([name for name in known if name not in SECTIONS], "a target")
    rates = _rates(settings.map("flops"), {} if base is None else base.flops)
    numbers: dict[str, float] = {
        key: settings.number(key, getattr(base, key, 1.0), whole=key in _WHOLE)
        for key in known
        if key not in _NO_NUMBERS
    }
    texts = {key: settings.text(key, getattr(base, key, "")) for key in ("name", "device")}
    sections: dict[str, Any] = {
        "loops": _section(LoopChoices, settings, "loops", path, base),
        "blocks": _section(BlockChoices, settings, "blocks", path, base),
    }
    settings.finish()
    return Target(**{**texts, **numbers, "flops": rates, **sections})


def _base(settings: Settings) -> Target | None:
    """The built-in target that a file starts from, if it names one."""
    name = settings.text("base")
    if not name:
        return None
    if not (RULES / "targets" / f"{name}.yaml").exists():
        names = ", ".join(sorted(path.stem for path in (RULES / "targets").glob("*.yaml")))
        message = f"no built-in target is called '{name}'"
        settings.error(settings.values["base"].span, "E113", message, f"there are: {names}")
        return load_target("generic")
    return load_target(name)


def _section(
    kind: type[Section], settings: Settings, name: str, path: Path, base: Target | None
) -> Section:
    """A section of a file. What fills its gaps is that of `base`, or of the built-in target that
    has all of it."""
    if base is not None:
        known: Section = getattr(base, name)
        return read_choices(kind, settings.map(name), name, known)
    complete = RULES / "targets" / f"{SECTIONS[name]}.yaml"
    if path.resolve() == complete.resolve():
        return read_choices(kind, settings.map(name), name, None)
    whole = read_choices(kind, read_settings(complete).map(name), name, None)
    return read_choices(kind, settings.map(name), name, whole)


def _rates(flops: Settings, default: Mapping[str, float]) -> Mapping[str, float]:
    flops.only((*DTYPE_WORDS["any"], "any"), "'flops'")
    if flops.values and not default:
        flops.need(("any",), "'flops'")
    return {**default, **{dtype: flops.number(dtype) for dtype in flops.values}}
