"""Spark's schema of the rows in `data.rows.rows`; apart, because planning needs only this."""

from __future__ import annotations

__all__ = ["SCHEMA"]

SCHEMA = "head string, records binary"
