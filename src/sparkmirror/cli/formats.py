"""How verbs print data."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Format"]


class Format(StrEnum):
    """A table for people, or one JSON object."""

    TABLE = "table"
    JSON = "json"
