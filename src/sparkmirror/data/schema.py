"""Spark's view of the rows in `data.rows`, apart from them because it is all that Spark's planning
processes need.
"""

from __future__ import annotations

__all__ = ["SCHEMA"]

SCHEMA = "head string, records binary"
