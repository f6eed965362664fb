"""Records on which a transform failed, as the sink writes them into gap records."""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.records.records import Record

__all__ = ["TRANSFORM_FAILED", "FailedRecords"]

TRANSFORM_FAILED = "TRANSFORM_FAILED"
"""Code of halts and gap records for records on which a transform failed."""


@dataclass(frozen=True, slots=True)
class FailedRecords:
    """Records of a chunk on which a transform failed. ``reason``: in words."""

    records: tuple[Record, ...]
    code: str
    reason: str
