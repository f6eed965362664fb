"""The steps of a run: the tools, what each is told to do, and what must come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.load import LOADS as PLAIN_LOADS
from benchmarks.load import Load
from benchmarks.steps import WINDOW_S

__all__ = [
    "FORMAT",
    "LOADS",
    "OTHER",
    "PARTITIONS",
    "PROBE_PARTITIONS",
    "PROBE_RATE",
    "PROBE_S",
    "SETTLE_S",
    "STEPS",
    "TOOLS",
    "Step",
    "Tool",
]

FORMAT = "transforms-1"
PARTITIONS, PROBE_PARTITIONS = 4, 12
PROBE_RATE, PROBE_S = 100, 15.0
SETTLE_S = 45.0
"""So many seconds of the same load come before the probes: all JVMs compile meanwhile."""
OTHER = "bench-other"
"""Beside the copied topic: a few documents, which some of the tools transform."""

WHERE = "get_json_object(CAST(value AS STRING), '$.region') <> 'EU'"
MASK = "mask_json(value, '$.card') AS value"
_NAME = "A->B.sparkmirror.transform.clean"


@dataclass(frozen=True)
class Tool:
    """``name``: in the tables. ``peer``: which of `benchmarks.peers` it is; empty: `loop`.

    ``output``: of `records.OUTPUTS`, also what the loop does. ``lines``: what its file says more.
    ``handler``: a message handler masks.
    """

    name: str
    peer: str
    output: str = "same"
    remote: str = "A.{topic}"
    lines: Mapping[str, str] = field(default_factory=dict)
    handler: bool = False


@dataclass(frozen=True)
class Step:
    """``tools``: keys of `TOOLS`, in the order of the first round.

    ``trials``: those whose copies say how much data the step needs. ``beside``: `OTHER` is mirrored
    as well. ``minutes``: about how long the step takes on two cores. ``window_s``: the least steady
    state of the fastest tool. A step without ``trials`` measures latency.
    """

    tools: tuple[str, ...]
    minutes: int
    trials: tuple[str, ...] = ()
    beside: bool = False
    window_s: float = WINDOW_S


def _clean(topics: str, **sql: str) -> dict[str, str]:
    made = {"A->B.sparkmirror.transforms": "clean", f"{_NAME}.topics": topics}
    return made | {f"{_NAME}.{key}": text for key, text in sql.items()}


_SMTS = {
    "A->B.transforms": "drop,route",
    "A->B.transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "A->B.transforms.drop.predicate": "test",
    "A->B.transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "A->B.transforms.route.regex": "A[.](.*)",
    "A->B.transforms.route.replacement": "moved.$1",
    "A->B.predicates": "test",
    "A->B.predicates.test.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
    "A->B.predicates.test.name": "test",
}
_MOVED = "moved.{topic}"

TOOLS = {
    "sparkmirror": Tool("sparkmirror, no transform", "sparkmirror"),
    "sparkmirror-renamed": Tool(
        "sparkmirror, renamed",
        "sparkmirror",
        remote=_MOVED,
        lines={"A->B.sparkmirror.topics.map": f"{PLAIN_LOADS['100b'].topic} => moved.$0"},
    ),
    "sparkmirror-beside": Tool(
        "sparkmirror, another topic transformed",
        "sparkmirror",
        lines=_clean(OTHER, where=WHERE, select=MASK),
    ),
    "sparkmirror-where": Tool(
        "sparkmirror, where", "sparkmirror", "where", lines=_clean("bench-json.*", where=WHERE)
    ),
    "loop-where": Tool("Python loop, where", "", "where", remote="loop.{topic}"),
    "sparkmirror-mask": Tool(
        "sparkmirror, mask_json", "sparkmirror", "mask", lines=_clean("bench-json.*", select=MASK)
    ),
    "loop-mask": Tool("Python loop, mask", "", "mask", remote="loop.{topic}"),
    "sparkmirror-smts": Tool(
        "sparkmirror, Filter and RegexRouter", "sparkmirror", "filter", remote=_MOVED, lines=_SMTS
    ),
    "mm2-smts": Tool(
        "MirrorMaker 2, Filter and RegexRouter", "mm2", "filter", remote=_MOVED, lines=_SMTS
    ),
    "sparkmirror-handler": Tool(
        "sparkmirror, MirrorMaker 1's files, handler in Python",
        "sparkmirror-keys",
        "mask",
        remote="{topic}",
        handler=True,
    ),
    "mm1-handler": Tool(
        "MirrorMaker 1, handler in Java", "mm1", "mask", remote="{topic}", handler=True
    ),
}

_WRITER = "benchmarks.transforms.records"
_BATCHES = ("batch.size=1000000", "batch.num.messages=100000", "linger.ms=100")
_EVENTS = Load(
    "bench-json-lz4",
    "1 KiB JSON events, lz4, 1 MB batches",
    PARTITIONS,
    400_000,
    1024,
    (*_BATCHES, "compression.type=lz4"),
    2,
    module=_WRITER,
)
LOADS = {
    "raw": PLAIN_LOADS["100b"],
    "json": _EVENTS,
    "smts": Load(
        "bench-headers",
        "100 B with headers, uncompressed, 1 MB batches",
        PARTITIONS,
        1_000_000,
        100,
        _BATCHES,
        2,
        module=_WRITER,
    ),
    "handler": Load(
        "bench-handler-lz4", _EVENTS.title, PARTITIONS, 300_000, 1024, _EVENTS.producer, 2,
        module=_WRITER,
    ),
}  # fmt: skip

STEPS = {
    "raw": Step(
        ("sparkmirror", "sparkmirror-renamed", "sparkmirror-beside"),
        13,
        trials=("sparkmirror",),
        beside=True,
    ),
    "json": Step(
        ("sparkmirror-where", "loop-where", "sparkmirror-mask", "loop-mask"),
        17,
        trials=("sparkmirror-where", "sparkmirror-mask"),
        # Spark compiles the SQL for some twenty seconds, and a mirror runs for months.
        window_s=15.0,
    ),
    "smts": Step(("sparkmirror-smts", "mm2-smts"), 7, trials=("sparkmirror-smts",)),
    "handler": Step(("sparkmirror-handler", "mm1-handler"), 4, trials=("mm1-handler",)),
    "latency": Step(("sparkmirror", "sparkmirror-beside"), 12, beside=True),
}
