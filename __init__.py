"""eqsat: a torch.compile backend whose optimisations are YAML rules.

`torch.compile(model, backend="eqsat")` needs no import. The names here are for looking
inside and for changing what the compiler does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import OptionError, config

if TYPE_CHECKING:
    from .explain import Explanation

__version__ = "0.1.0"
__all__ = [
    "OptionError",
    "backend",
    "check",
    "config",
    "explain",
    "fresh_cache",
    "load_rules",
    "options",
    "reset",
]

options = config.patch
load_rules = config.add_rules


def explain(fn: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Compile `fn` with eqsat, call it with the arguments, and tell what was done.

    Gives an `Explanation`: print it, or use `.to_json()`.
    """
    from .explain import explain_call  # noqa: PLC0415 - keeps `import eqsat` light

    return explain_call(fn, *args, **kwargs)


def check(path: str, examples: int = 30, seed: int = 0) -> bool:
    """Test the rules of a file or folder as `eqsat check` does; True when all are right."""
    from .commands import check_paths  # noqa: PLC0415

    return check_paths([path], [], examples, seed) == 0


def fresh_cache() -> Any:
    """A context manager: compiled code inside goes to an empty temporary folder."""
    from .codegen.cache import fresh_cache as fresh  # noqa: PLC0415

    return fresh()


def reset() -> None:
    """Forget assigned settings and every compiled graph."""
    import torch  # noqa: PLC0415

    config.reset()
    torch._dynamo.reset()


def __getattr__(name: str) -> Any:
    if name == "backend":
        from .backend import compile_graph  # noqa: PLC0415

        return compile_graph
    raise AttributeError(f"module 'eqsat' has no attribute {name!r}")
