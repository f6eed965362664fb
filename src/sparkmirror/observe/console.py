"""A rich console that escapes control characters in texts."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sparkmirror.text import printable

__all__ = ["PrintableConsole"]


class PrintableConsole(Console):
    """Shows only printable text: names of topics, groups and brokers are untrusted."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render like the base class, with printable text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)
