"""What a mutant is, and what is checked about it without running anything."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["PACKAGE", "Mutant", "complaints", "promises"]

PACKAGE = Path("src/sparkmirror")
PAGE = Path("docs/guarantees.md")
_OTHER_PAGES = ("docs/compatibility.md", "docs/transforms.md")


@dataclass(frozen=True)
class Mutant:
    """One fault, and who must notice it.

    ``promise``: how the row of a table of promises in docs/guarantees.md begins, or one of that
    page's headings (``## …``), or another page: ``docs/compatibility.md`` for what MirrorMaker 2
    does, too, ``docs/transforms.md`` for what transforms do.
    ``file``: below `PACKAGE`. ``old`` occurs there exactly once, and ``new`` takes its place.
    ``tests``: pytest's ids, without parameters; each of them has to fail.
    """

    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def brokers(self) -> bool:
        """Whether a test that notices it starts brokers."""
        return any(needs_brokers(test) for test in self.tests)

    def applied(self, text: str) -> str:
        """``text`` with the fault in it. Raises `ValueError` when the place is not there once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"mutant {self.name}: its text is {found} times in {self.file}, not once"
            )
        return text.replace(self.old, self.new)


def needs_brokers(test: str) -> bool:
    """Whether a test, by the folder that it is in, starts brokers."""
    return not test.startswith(("tests/unit/", "tests/property/"))


def promises(page: str) -> list[str]:
    """The promises of docs/guarantees.md: first cells of its tables of promises, each once."""
    found: dict[str, None] = {}
    inside = False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == "promise":
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            found[cells[0]] = None
    return list(found)


def complaints(mutants: Sequence[Mutant], root: Path) -> list[str]:
    """What is wrong with the table: faults that cannot be made, tests or promises that are not
    there, promises without a mutant.
    """
    page = (root / PAGE).read_text(encoding="utf-8")
    rows = promises(page)
    headings = {line for line in page.splitlines() if line.startswith("## ")}
    kept: set[str] = set()
    found = [f"two mutants are called {name}" for name in _twice(one.name for one in mutants)]
    for one in mutants:
        found += _faults_of(one, root)
        meant = [row for row in rows if row.startswith(one.promise)]
        if len(meant) == 1:
            kept.add(meant[0])
        elif one.promise not in headings and one.promise not in _OTHER_PAGES:
            found.append(f"mutant {one.name}: {len(meant)} promises begin with {one.promise!r}")
    return found + [f"no mutant breaks the promise: {row}" for row in rows if row not in kept]


def _faults_of(one: Mutant, root: Path) -> list[str]:
    found: list[str] = []
    path = root / PACKAGE / one.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        mutated = one.applied(text)
        if _meaning(path.suffix, mutated) == _meaning(path.suffix, text):
            found.append(f"mutant {one.name} changes nothing")
    except (ValueError, SyntaxError) as error:
        found.append(str(error) if isinstance(error, ValueError) else f"{one.name}: {error}")
    if not one.tests:
        found.append(f"mutant {one.name} names no test")
    for test in one.tests:
        file, _, function = test.partition("::")
        source = root / file
        there = source.is_file() and re.search(
            rf"^def {re.escape(function)}\(", source.read_text(encoding="utf-8"), re.MULTILINE
        )
        if not there:
            found.append(f"mutant {one.name}: there is no test {test}")
    return found


@cache  # a file has several mutants
def _meaning(suffix: str, text: str) -> bytes:
    """Of ``text`` without what changes nothing; raises `SyntaxError` for Python that is none."""
    meant = ast.dump(ast.parse(text)) if suffix == ".py" else "".join(text.split())
    return hashlib.sha256(meant.encode()).digest()


def _twice(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
