"""The Mermaid diagrams of the pages can be drawn.

`mermaidx` carries Mermaid's own ``mermaid.min.js`` and runs it in QuickJS, so neither Node.js nor a
browser is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mermaidx.engine import Engine, MermaidRenderError

ROOT = Path(__file__).parents[3]
FOLDERS = (".github", "benchmarks", "docs", "examples", "src", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for one in FOLDERS for page in (ROOT / one).rglob("*.md"))]
)
_BLOCK = re.compile(r"^( *)```+ *mermaid *\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"\bon line (\d+)")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    drawing = Engine()
    drawing.start()
    yield drawing
    drawing.close()


def diagrams(page: str) -> Iterator[tuple[int, str]]:
    """Each diagram of ``page``, with the number of its first line in it."""
    for found in _BLOCK.finditer(page):
        yield page.count("\n", 0, found.start(2)) + 1, found[2]


def faults(engine: Engine, name: str, page: str) -> Iterator[str]:
    """``FILE:LINE: what Mermaid says`` of each diagram of ``page`` that it does not draw."""
    for first, text in diagrams(page):
        try:
            engine.render_svg(text, "default", None, None)
        except MermaidRenderError as error:
            said = _LINE.search(str(error))
            within = int(said[1]) - 1 if said else 0
            # Mermaid counts beyond the end where something is not closed.
            last = first + max(0, text.count("\n") - 1)
            yield f"{name}:{min(first + within, last)}: {error}"


def test_mermaid_draws_every_diagram(engine: Engine) -> None:
    wrong = [
        fault
        for page in PAGES
        for fault in faults(engine, str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_diagrams_are_found() -> None:
    """Else the pattern has stopped to find them."""
    design = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    found = list(diagrams(design))
    assert len(found) == design.count("```mermaid") > 0
    assert [design.splitlines()[first - 1] for first, _ in found] == [
        text.splitlines()[0] for _, text in found
    ]


@pytest.mark.parametrize(
    ("diagram", "line"),
    [
        ("flowchart LR\n    a --> b\n    b --> c\n", None),
        ("flowchart LR\n    a --> b\n    b --> --> c\n    c --> d\n", 5),
        ("flowchart LR\n    a[one --> b\n", 4),
        ("sequenceDiagram\n    A->>B hello\n", 4),
        ("flowchrt LR\n    a --> b\n", 3),
        ("", 3),
    ],
)
def test_a_broken_diagram_is_named_with_its_line(
    engine: Engine, diagram: str, line: int | None
) -> None:
    page = f"# Title\n```mermaid\n{diagram}```\n\n```\nflowchrt\n```\n"
    found = [fault.split(": ")[0] for fault in faults(engine, "page.md", page)]
    assert found == ([] if line is None else [f"page.md:{line}"])


def test_the_second_diagram_of_a_page_is_looked_at(engine: Engine) -> None:
    page = "```mermaid\nflowchart LR\n  a --> b\n```\ntext\n  ```mermaid\n  nothing\n  ```\n"
    (fault,) = faults(engine, "page.md", page)
    assert fault.startswith("page.md:7: ")
