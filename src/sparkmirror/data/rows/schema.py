"""Spark's view of the rows in `data.rows.rows`, apart from them: it is all that planning needs."""

from __future__ import annotations

__all__ = ["SCHEMA"]

SCHEMA = "head string, records binary"
