"""Settings rows of our own: lost and refused records; where metrics are served."""

from __future__ import annotations

from sparkmirror.config.table.setting import Scope, Setting, Type
from sparkmirror.model import FaultSettings

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

TOPICS_MAP = "sparkmirror.topics.map"

NAME_ROWS = (
    Setting(
        TOPICS_MAP, Type.STRING, "",
        "Names of remote topics: rules `REGEX => NAME`, separated by `;`. The first rule counts "
        "whose Java regex matches a source topic's whole name; `$1` or `${name}` stand for its "
        "groups, and NAME is the whole name at the target, without the policy's prefix. The policy "
        "names topics that no rule matches. In a properties file each backslash is doubled.",
        (Scope.SPARKMIRROR,), topics_map=True,
    ),
)  # fmt: skip

# MirrorMaker 1's positions are Java's, which say nothing about the target.
MM1_OWN_ROWS = (
    *NAME_ROWS,
    *(row for row in FAULT_ROWS if not row.name.startswith(_TARGET_LOSS)),
)


_D = (Scope.DRIVER,)

METRICS_ROWS = (
    Setting(
        "sparkmirror.metrics.listen", Type.STRING, "",
        "`HOST:PORT` for `/metrics` and `/health`; `PORT` alone is on 127.0.0.1, port 0 any free"
        " one, empty none. `--metrics` beats it. An address that others can reach needs a"
        " certificate and a token.", _D,
    ),
    Setting(
        "sparkmirror.metrics.labels", Type.STRING, "partition",
        "How fine the series are: with `topic` the label `partition` is left out, with `flow` also"
        " `topic`.", _D, choices=("partition", "topic", "flow"),
    ),
    Setting(
        "sparkmirror.metrics.tls.cert", Type.STRING, "",
        "PEM file with the certificate chain to serve with; renewed files are taken up.", _D,
    ),
    Setting(
        "sparkmirror.metrics.tls.key", Type.STRING, "",
        "PEM file with the certificate's private key, without a password.", _D,
    ),
    Setting(
        "sparkmirror.metrics.token", Type.PASSWORD, "",
        "What scrapers have to present as `Authorization: Bearer …`; better from a config provider"
        " or a file of its own than here.", _D,
    ),
    Setting(
        "sparkmirror.metrics.token.file", Type.STRING, "",
        "File that holds the token alone; read anew for each request, so it can be replaced.", _D,
    ),
)  # fmt: skip
