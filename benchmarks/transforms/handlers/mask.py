"""A message handler for MirrorMaker 1's commands: `MaskHandler.java` in Python."""

from __future__ import annotations

import json
from dataclasses import replace

from sparkmirror.model import SourceRecord, TargetRecord


def mask(record: SourceRecord) -> TargetRecord:
    """The record with its card number masked, in the partition where it was."""
    event = json.loads(record.value or b"null")
    if isinstance(event, dict) and "card" in event:
        event["card"] = "***"
    value = json.dumps(event).encode()
    return replace(record.to_target(), value=value, partition=record.partition)
