"""Settings rows: what becomes of a partition whose data is lost on either side, or refused."""

from __future__ import annotations

from sparkmirror.config.table.setting import Scope, Setting, Type
from sparkmirror.model import FaultSettings

__all__ = [
    "FAULT_ROWS",
    "LOSS_CHOICES",
    "MM1_FAULT_ROWS",
    "REFUSAL_CHOICES",
    "TARGET_LOSS_CHOICES",
]

_F = FaultSettings()

# The most careful choice first: it wins where several lists name a topic.
LOSS_CHOICES = ("fail", "record-and-continue")
TARGET_LOSS_CHOICES = ("fail", "repair", "record-and-continue")
REFUSAL_CHOICES = ("pause", "dead-letter", "skip")

_LOSS = "sparkmirror.on.source.loss"
_TARGET_LOSS = "sparkmirror.on.target.loss"
_REFUSAL = "sparkmirror.on.bad.record"

FAULT_ROWS = (
    Setting(
        _LOSS, Type.STRING, _F.source_loss,
        "When source data is gone before it was mirrored (deleted, truncated, topic made anew, "
        "cluster replaced): `fail` stops the partition concerned, `record-and-continue` goes on "
        "at the first offset that is there. Both leave a gap record (`sparkmirror gaps`).",
        (Scope.SPARKMIRROR,), choices=LOSS_CHOICES,
    ),
    *(
        Setting(
            f"{_LOSS}.{choice}.topics", Type.LIST, "",
            f"Source topics (Java regexes) for which it is `{choice}`, whatever `{_LOSS}` says; "
            "the more careful choice wins where several lists name a topic.",
            (Scope.SPARKMIRROR,), regexes=True,
        )
        for choice in LOSS_CHOICES
    ),
    Setting(
        _TARGET_LOSS, Type.STRING, _F.target_loss,
        "When the target has lost records that it had acknowledged (remote topic deleted and made "
        "anew, log truncated, cluster replaced): `repair` mirrors them again from where the "
        "target's log ends, `fail` stops the partition concerned, `record-and-continue` goes on "
        "without them. All leave a gap record (`sparkmirror gaps`).",
        (Scope.SPARKMIRROR,), choices=TARGET_LOSS_CHOICES,
    ),
    *(
        Setting(
            f"{_TARGET_LOSS}.{choice}.topics", Type.LIST, "",
            f"Source topics (Java regexes) for which it is `{choice}`, whatever `{_TARGET_LOSS}` "
            "says; where several lists name a topic, `fail` wins, then `repair`.",
            (Scope.SPARKMIRROR,), regexes=True,
        )
        for choice in TARGET_LOSS_CHOICES
    ),
    Setting(
        _REFUSAL, Type.STRING, _F.bad_record,
        "When the target refuses a record (too large, timestamp, null key on a compacted topic): "
        "`pause` stops the partition and tries again, `skip` leaves the record out, `dead-letter` "
        "writes it to `<remote topic>.dead-letter`. What is left out gets a gap record.",
        (Scope.SPARKMIRROR,), choices=REFUSAL_CHOICES,
    ),
    *(
        Setting(
            f"{_REFUSAL}.{choice}.topics", Type.LIST, "",
            f"Source topics (Java regexes) for which it is `{choice}`, whatever `{_REFUSAL}` says; "
            "the more careful choice wins where several lists name a topic.",
            (Scope.SPARKMIRROR,), regexes=True,
        )
        for choice in REFUSAL_CHOICES
    ),
)  # fmt: skip

# MirrorMaker 1's positions are Java's, which say nothing about the target.
MM1_FAULT_ROWS = tuple(row for row in FAULT_ROWS if not row.name.startswith(_TARGET_LOSS))
