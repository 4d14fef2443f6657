"""eqsat: a torch.compile backend whose optimisations are YAML rules.

`torch.compile(model, backend="eqsat")` needs no import. The names here are for looking
inside and for changing what the compiler does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import notices
from .config import OptionError, config
from .packs import RulePack, load_rules
from .version import VERSION

if TYPE_CHECKING:
    from .explanation import Explanation
    from .new_command import NewRule

__version__ = VERSION
__all__ = [
    "OptionError",
    "RulePack",
    "backend",
    "check",
    "config",
    "explain",
    "fresh_cache",
    "load_rules",
    "new_rule",
    "options",
    "reset",
]

options = config.patch


def explain(fn: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Compile `fn` with eqsat, call it with the arguments, and tell what was done.

    Gives an `Explanation`: print it, or use `.to_json()`.
    """
    from .explanation import explain_call  # noqa: PLC0415 - keeps `import eqsat` light

    return explain_call(fn, *args, **kwargs)


def check(path: str, examples: int = 30, seed: int = 0) -> bool:
    """Test the rules of a file or folder as `eqsat check` does; True when all are right."""
    from .check_command import CheckSettings, check_paths  # noqa: PLC0415

    # In this process: a script that calls this need not be safe to be imported by others.
    return check_paths([path], CheckSettings(examples=examples, seed=seed, jobs=0)) == 0


def new_rule(before: Any, after: Any, example_inputs: Any = None, **how: Any) -> NewRule:
    """A rule from two torch functions, checked: `print(eqsat.new_rule(before, after, (x, w)))`.

    Keywords: `name`, `stage` ("post_grad" or "pre_grad"), `examples`, and `tell`, a function
    that hears what is tried. Raises ValueError where rules cannot say it.
    """
    from .new_command import new_rule as make  # noqa: PLC0415

    return make(before, after, example_inputs, **how)


def fresh_cache() -> Any:
    """A context manager: compiled code inside goes to an empty temporary folder."""
    from .codegen.cache import fresh_cache as fresh  # noqa: PLC0415

    return fresh()


def reset() -> None:
    """Forget assigned settings, loaded packs, warnings given and every compiled graph."""
    import torch  # noqa: PLC0415

    config.reset()
    notices.forget()
    torch._dynamo.reset()


def __getattr__(name: str) -> Any:
    if name == "backend":
        from .backend import compile_graph  # noqa: PLC0415

        return compile_graph
    raise AttributeError(f"module 'eqsat' has no attribute {name!r}")
