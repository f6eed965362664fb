"""A console of rich's that lets no control characters through but its own."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sparkmirror.text import printable

__all__ = ["PrintableConsole"]


class PrintableConsole(Console):
    """Names of topics, groups and brokers are text of others: what it shows is printable."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As the base class."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)
