"""The explanation pages of message codes: `engine/pages/E606.md` and so on.

Takes nothing; gives one `Page` per code. A page is Markdown: a title with the code, what is wrong
and why it matters, a wrong example, the corrected one, and the codes to see also.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "pages"
_TITLE = re.compile(r"# ([EW]\d{3}): (.+)")
_BLOCK = re.compile(r"^```(\w+(?: \w+)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SEE = re.compile(r"^See also: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """`title` is the one-line meaning. `wrong` and `right` are rule files where `language` is
    "yaml", schedules where it is "yaml schedule", shell commands where it is "sh"."""

    code: str
    title: str
    text: str
    language: str
    wrong: str
    right: str
    see: tuple[str, ...]


@lru_cache(maxsize=1)
def pages() -> Mapping[str, Page]:
    """All pages by code, in order. Raises ValueError for a file that is no page."""
    found = (_page(path) for path in sorted(FOLDER.glob("*.md")))
    return {page.code: page for page in found}


def _page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    title, blocks, see = _TITLE.match(text), _BLOCK.findall(text), _SEE.search(text)
    if title is None or title.group(1) != path.stem or len(blocks) != 2:
        raise ValueError(f"{path}: a page has its code as title and two examples")
    (language, wrong), (_, right) = blocks
    codes = tuple(see.group(1).split(", ")) if see is not None else ()
    return Page(path.stem, title.group(2), text, language, wrong, right, codes)
