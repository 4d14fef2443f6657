"""`python -m engine ...` is `eqsat ...`: hands on to the command line of the package."""

from __future__ import annotations

import runpy


def main() -> None:
    """Run `eqsat.__main__` with the arguments of this process."""
    runpy.run_module("eqsat", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
