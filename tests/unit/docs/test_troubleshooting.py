"""What the troubleshooting page quotes is what the program says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import sparkmirror

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_TABLE = re.compile(r"^\| it says \|.*\n\|---.*\n((?:\|.*\n)+)", re.MULTILINE)


def said() -> list[str]:
    """Every text of the program; what is filled in is ``…``."""
    texts = []
    for path in Path(sparkmirror.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values
                )
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def quotes() -> list[str]:
    rows = [row for table in _TABLE.findall(PAGE) for row in table.splitlines()]
    return [re.match(r"\| `(.+?)` \|", row)[1] for row in rows]  # type: ignore[index]


def test_every_quote_is_a_text_of_the_program() -> None:
    texts = said()
    missing = []
    for quote in quotes():
        # Names and numbers may hold texts of their own: the pieces follow each other.
        pieces = [one.strip() for one in re.split(r"[…()]+", quote) if len(one.strip()) > 3]
        pattern = re.compile(".*?".join(map(re.escape, pieces)), re.DOTALL)
        if not any(pattern.search(text) for text in texts):
            missing.append(quote)
    assert missing == []
    assert len(quotes()) > 20
