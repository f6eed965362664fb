"""The report of ``make test-all``: what each part came to, kept by product, and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.complete.parts import Part

__all__ = ["Machine", "Result", "Results", "green", "render"]


@dataclass(frozen=True)
class Result:
    """What a part came to. ``wrong``: why it failed, empty when it passed.

    ``commit``, ``product``: of what; a result of another product does not count.
    """

    part: str
    began: str
    seconds: float
    wrong: str
    short: bool = False
    figures: Mapping[str, str] = field(default_factory=dict)
    page: str = ""
    commit: str = ""
    product: str = ""


@dataclass(frozen=True)
class Machine:
    """Where and on what it ran. ``changed``: files that were not as in the commit.

    ``product``: names what is tested (`tests.complete.product`).
    """

    commit: str
    subject: str
    product: str
    changed: tuple[str, ...]
    cpus: int
    memory_gib: int
    python: str


class Results:
    """The results of one product's parts, so that a run can be continued.

    ``kept``: directory of the results, which is committed: another machine continues as well.
    ``working``: directory for what the parts write.
    """

    def __init__(self, kept: Path, working: Path, product: str) -> None:
        self._kept, self._working, self.product = kept, working, product

    def directory(self, part: Part) -> Path:
        """Where ``part`` writes."""
        found = self._working / _file_name(part)
        found.mkdir(parents=True, exist_ok=True)
        return found

    def put(self, part: Part, result: Result) -> None:
        """Keep what ``part`` came to, in the place of what it came to before."""
        self._kept.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(result), indent=1)
        self._path(part).write_text(text + "\n", encoding="utf-8")

    def get(self, part: Part) -> Result | None:
        """What ``part`` came to last; None when it has not been run with this product."""
        path = self._path(part)
        if not path.exists():
            return None
        found = Result(**json.loads(path.read_text(encoding="utf-8")))
        return found if found.product == self.product else None

    def _path(self, part: Part) -> Path:
        return self._kept / f"{_file_name(part)}.json"


def _file_name(part: Part) -> str:
    return part.name.replace(", ", "-").replace(" ", "-")


def green(parts: Sequence[Part], results: Mapping[str, Result]) -> bool:
    """Whether every part was run, as for a release, and nothing was wrong with any."""
    return all(
        (found := results.get(part.name)) is not None and not found.wrong and not found.short
        for part in parts
    )


def render(
    parts: Sequence[Part], results: Mapping[str, Result], machine: Machine, now: datetime
) -> str:
    """The page."""
    verdict = "green" if green(parts, results) else "RED"
    lines = [
        f"# All tests, {now.astimezone(UTC):%Y-%m-%d}: {verdict}",
        "",
        f"Commit `{machine.commit}` ({machine.subject}), {machine.cpus} processors, "
        f"{machine.memory_gib} GiB, Python {machine.python}; `make test-all`.",
        "",
    ]
    if machine.changed:
        lines += [f"**Not that commit alone:** {', '.join(machine.changed)} had changes.", ""]
    lines += ["| part | what | result | figures | began, UTC | min |", "|---|---|---|---|---|---|"]
    for part in parts:
        found = results.get(part.name)
        if found is None:
            lines.append(f"| {part.name} | {part.what} | **not run** | | | |")
            continue
        result = f"**FAILED**: {found.wrong}" if found.wrong else "passed"
        if found.commit and found.commit != machine.commit:
            result += f" (at `{found.commit}`, the same product with other tests or pages)"
        if found.short:
            result += " (shortest setting: shows only that the command works)"
        figures = ", ".join(f"{value} {name}" for name, value in found.figures.items())
        cells = (part.name, part.what, result, figures, found.began, f"{found.seconds / 60:.1f}")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for part in parts:
        found = results.get(part.name)
        if found is not None and found.page:
            lines += ["", f"## {part.name[0].upper()}{part.name[1:]}", "", _lowered(found.page)]
    return "\n".join(lines).rstrip() + "\n"


def _lowered(page: str) -> str:
    """A page as a section of this one: its headings below ours."""
    return "\n".join(
        f"##{line}" if line.startswith("#") else line for line in page.strip().splitlines()
    )
