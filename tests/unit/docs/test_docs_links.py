"""The links of the documents lead somewhere: to a file, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_QUOTED = re.compile(r"`[^`\n]*`")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[tuple[str, str]]:
    """(file as written, heading's anchor) of each link within the repository."""
    return _LINK.findall(_QUOTED.sub("", _CODE.sub("", page.read_text(encoding="utf-8"))))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings: lower case, no punctuation, dashes for blanks."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for file, anchor in links(page):
        place = (page.parent / file).resolve() if file else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            lost.append(f"{file}#{anchor}")
    assert lost == []


def test_the_pattern_finds_links_and_every_page_is_reached() -> None:
    """A page that nothing links to is one that nobody reads."""
    linked = {(page.parent / file).resolve() for page in PAGES for file, _ in links(page) if file}
    assert {page for page in PAGES if page.parent.name == "docs"} <= linked
