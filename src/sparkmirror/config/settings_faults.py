"""Settings rows: what becomes of a partition whose data is lost at the source or refused."""

from __future__ import annotations

from sparkmirror.config.setting import Scope, Setting, Type
from sparkmirror.model import FaultSettings

__all__ = ["FAULT_ROWS", "LOSS_CHOICES", "REFUSAL_CHOICES"]

_F = FaultSettings()

# The most careful choice first: it wins where several lists name a topic.
LOSS_CHOICES = ("fail", "record-and-continue")
REFUSAL_CHOICES = ("pause", "dead-letter", "skip")

_LOSS = "sparkmirror.on.source.loss"
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
