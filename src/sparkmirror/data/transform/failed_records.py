"""Records on which a transform failed, as the sink writes them into gap records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.records.records import Record

__all__ = ["TRANSFORM_FAILED", "FailedRecords"]

TRANSFORM_FAILED = "TRANSFORM_FAILED"
"""Code of halts and gap records for records on which a transform failed."""


@dataclass(frozen=True, slots=True)
class FailedRecords:
    """Records of a chunk on which a transform failed. ``reason``: in words.

    ``details``: Spark's message by source offset, for the records that it is known of.
    """

    records: tuple[Record, ...]
    code: str
    reason: str
    details: Mapping[int, str] = field(default_factory=dict)

    def said(self, offset: int) -> str:
        """The reason, with Spark's message on the record at source offset ``offset``."""
        detail = self.details.get(offset)
        return self.reason if detail is None else f"{self.reason}: {detail}"
