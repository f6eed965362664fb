"""Flame graphs of sampled stacks, and what takes most of the samples.

Stacks are in the collapsed form in which profilers write them: a line has the frames from the
outermost one on with semicolons between them, a space, and how many samples were taken there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

__all__ = ["draw", "read_stacks", "self_times"]

Stacks = Mapping[tuple[str, ...], int]

_WIDTH, _ROW, _MARGIN = 1400.0, 16.0, 10.0
_LETTER = 6.6  # of the font below, on average
_LEAST = 0.001  # of the width: nobody sees less


def read_stacks(paths: Iterable[Path]) -> Counter[tuple[str, ...]]:
    """Samples by stack, of all files together."""
    found: Counter[tuple[str, ...]] = Counter()
    for path in paths:
        for line in path.read_text(errors="replace").splitlines():
            stack, _, count = line.rpartition(" ")
            if stack:
                found[tuple(stack.split(";"))] += int(count)
    return found


def self_times(stacks: Stacks) -> list[tuple[str, float]]:
    """The share of all samples in which each frame was the innermost one, largest first."""
    total = sum(stacks.values())
    leaves: Counter[str] = Counter()
    for stack, count in stacks.items():
        leaves[stack[-1]] += count
    return [(frame, count / total) for frame, count in leaves.most_common()]


def draw(stacks: Stacks, title: str, path: Path) -> None:
    """Write an SVG: the outermost frames below, widths in samples, a hint for each frame."""
    total = sum(stacks.values())
    depth = max(map(len, stacks), default=0)
    height = (depth + 3) * _ROW + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:.0f}" height="{height:.0f}"'
        ' font-family="monospace" font-size="11">',
        f'<rect width="100%" height="100%" fill="#fffdf7"/><text x="{_MARGIN}" y="{_ROW + 4}"'
        f' font-size="14">{escape(title)}, {total:,} samples</text>',
    ]
    scale = (_WIDTH - 2 * _MARGIN) / max(total, 1)
    level: list[tuple[float, str, list[tuple[tuple[str, ...], int]]]] = [
        (_MARGIN, "", [(stack, count) for stack, count in sorted(stacks.items())])
    ]
    for number in range(depth):
        y = height - _MARGIN - (number + 1) * _ROW
        above = []
        for left, _, below in level:
            inner: dict[str, list[tuple[tuple[str, ...], int]]] = {}
            for stack, count in below:
                if len(stack) > number:
                    inner.setdefault(stack[number], []).append((stack, count))
            x = left
            for frame, its in inner.items():
                samples = sum(count for _, count in its)
                width = samples * scale
                if width >= _LEAST * _WIDTH:
                    lines.append(_box(frame, x, y, width, samples / total))
                    above.append((x, frame, its))
                x += width
        level = above
    path.write_text("\n".join([*lines, "</svg>\n"]), encoding="utf-8")


def _box(frame: str, x: float, y: float, width: float, share: float) -> str:
    """One frame. Its colour says whose code it is: ours, Python's, native, Java's."""
    room = int((width - 4) / _LETTER)
    shown = frame if len(frame) <= room else frame[: max(room - 1, 0)] + "…" if room > 3 else ""
    text = f'<text x="{x + 2:.1f}" y="{y + 12:.1f}">{escape(shown)}</text>' if shown else ""
    hint = quoteattr(f"{frame} ({share:.1%})")[1:-1]
    return (
        f'<g><title>{hint}</title><rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.5, 0.3):.1f}"'
        f' height="{_ROW - 1:.0f}" fill="{_colour(frame)}"/>{text}</g>'
    )


def _colour(frame: str) -> str:
    if "sparkmirror/" in frame:
        return "#ffb454"
    if ".py" in frame:
        return "#ffe08a"
    if "/" in frame and "." in frame and "(" not in frame:
        return "#9fd39a"  # Java's classes, as in org/apache/spark/…
    return "#c9cbe8"
