"""Where a setting comes from: a line of a file, the command line, a default …"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a setting comes from."""

    FILE = "file"
    COMMAND_LINE = "command line"
    PROGRAM = "program"
    DEFAULT = "default"
    """The default in the settings table."""
    MIRRORMAKER = "MirrorMaker's default"
    """A default that MirrorMaker has and that is not the client's own."""
    RELEASE = "release's default"
    """A default of the release that the file was written for; it counts as given."""
    DERIVED = "derived"
    """It follows from other settings."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a setting comes from. ``text``: what users read; ``line``: 0 if it is of no file."""

    kind: Kind
    text: str = ""
    line: int = 0

    @staticmethod
    def in_file(place: str) -> Origin:
        """At ``place``, as ``file:line``; a place without a line is possible."""
        number = place.rpartition(":")[2]
        return Origin(Kind.FILE, place, int(number) if number.isdigit() else 0)

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.kind in (Kind.DEFAULT, Kind.MIRRORMAKER)


TABLE = Origin(Kind.DEFAULT, "default")
MIRRORMAKER = Origin(Kind.MIRRORMAKER, "MirrorMaker's default")
DERIVED = Origin(Kind.DERIVED)
