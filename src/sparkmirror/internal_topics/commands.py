r"""The control topic: messages between the driver, the planner and the slots.

The target has one compacted topic per source, ``mm2-sparkmirror.<source>.internal`` (for
MirrorMaker 1's files one per group and source, see `control_topic`). MirrorMaker 2's own exclude
``mm2.*\.internal`` matches the name, so no mirror replicates the topic.

=========  =======================  ==========================================================
partition  key                      value (JSON; from 16 KiB up zlib-compressed)
=========  =======================  ==========================================================
0          ``<flow>``               command: run, drain, replan
0          ``<flow>/pause``         command: pause, resume; it outlives runs. Operators write it to
                                    the orders topic, and the driver passes it on
                                    (`control.coordination.orders_topic`)
0          ``<flow>/assignment``    what to mirror; ``<flow>/assignment/<i>`` if in pieces
0          ``<flow>/deal``          which slot gets which partitions, by load (`deals.record`)
0          ``<flow>/epoch``         which plan of an exactly-once flow counts (`epochs.record`)
0          ``<flow>/limits``        bytes per second that the slots may read (`throttles`)
0          ``<flow>/topics``        what was created for routed records (`routed_topics`)
0          ``<flow>/claim``         which run owns the flow (`flow_claims`)
1          ``<flow>/<slot>``        progress of one slot, about once a second
1          ``<flow>/<slot>/rows/…`` partitions of a slot that has many of them (`reports`)
1          ``<flow>/<slot>/topics`` topics that a slot needs for routed records
1          ``<flow>/<slot>/gone``   partitions given up for other slots (`epochs.releases`)
1          ``<flow>/planner``       the version of the assignment that all slots follow
1          ``<flow>/driver``        the driver's report, at least every ten seconds
1          ``<flow>/standby#…``     a standby process (`flow_claims`)
1          ``<flow>/history/…``     events, for ``sparkmirror history`` (`history`)
=========  =======================  ==========================================================

The codecs are pure; those of assignments and reports are in `assignments` and `reports`. They
ignore unknown fields and return None for malformed records, so that a reader can skip and count
them: a malformed record must not stop a mirror.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from sparkmirror.internal_topics.assignments import (
    ASSIGNMENT_KEY,
    AssignmentCollector,
    AssignmentDocument,
    SourcePartition,
    encode_assignment,
    member_row,
    read_member,
)
from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.reports import (
    Planned,
    decode_halted,
    decode_planned,
    decode_progress,
    encode_planned,
    encode_progress,
)
from sparkmirror.model import MirrorMode
from sparkmirror.settings import FlowSettings

__all__ = [
    "COMMAND_PARTITION",
    "CONTROL_PARTITIONS",
    "PROGRESS_PARTITION",
    "AssignmentCollector",
    "AssignmentDocument",
    "Command",
    "CommandKind",
    "Planned",
    "SourcePartition",
    "channel",
    "control_topic",
    "decode_command",
    "decode_halted",
    "decode_planned",
    "decode_progress",
    "encode_assignment",
    "encode_command",
    "encode_planned",
    "encode_progress",
    "member_row",
    "read_member",
    "run_of",
    "topic_beside",
]

_PREFIX = "mm2-sparkmirror"
COMMAND_PARTITION = 0
PROGRESS_PARTITION = 1
CONTROL_PARTITIONS = 2

_PAUSE_KEY = re.compile(r"(.+)/pause")


class CommandKind(Enum):
    """Commands to the slots of a flow.

    ``RUN``: run the epochs of ``run_id``. ``DRAIN``: write what was read, commit, end the query.
    ``REPLAN``: end the epoch early; the next one is planned from the new assignment. ``EXTEND``:
    the new assignment differs in partitions that slots begin or leave within the epoch. ``PAUSE``:
    fetch nothing, keep the positions. ``RESUME``: end a pause. Pause and resume have a key of their
    own, so that neither a later run nor a new assignment ends a pause.
    """

    RUN = "run"
    DRAIN = "drain"
    REPLAN = "replan"
    EXTEND = "extend"
    PAUSE = "pause"
    RESUME = "resume"

    @property
    def pauses(self) -> bool:
        """Whether this is ``PAUSE`` or ``RESUME``."""
        return self in (CommandKind.PAUSE, CommandKind.RESUME)


@dataclass(frozen=True, slots=True)
class Command:
    """A command to one flow.

    ``version``: the assignment that it announces; 0: none. ``order_id``: the order in the orders
    topic that the driver passes on with it (`control.coordination.orders_topic`). ``base``: with
    ``EXTEND``, the newest version for which an epoch had to begin.
    """

    flow: str
    kind: CommandKind
    run_id: str
    time_ms: int
    epoch: int | None = None
    version: int = 0
    order_id: str = ""
    base: int = 0


def control_topic(flow: FlowSettings) -> str:
    """Name of the control topic of ``flow``, on its target cluster."""
    return f"{_PREFIX}.{flow.mirror}.internal"


def topic_beside(flow: FlowSettings, what: str) -> str:
    """Name of another internal topic of the flow; ``what``: for example ``gaps`` or ``orders``."""
    return f"{_PREFIX}-{what}{control_topic(flow).removeprefix(_PREFIX)}"


def channel(flow: FlowSettings, run_id: str) -> str:
    """The ``<flow>`` in the record keys of one run.

    The members of a MirrorMaker 1 group share one control topic, each for its own partitions, so
    the keys contain the run id there.
    """
    return f"{flow.name}#{run_id}" if flow.mode is MirrorMode.MM1 else flow.name


def run_of(key: str, flow: str) -> str:
    """The run id in `channel` ``key``, if it belongs to ``flow``; else empty."""
    name, _, run_id = key.partition("#")
    return run_id if name == flow else ""


# --- commands -----------------------------------------------------------------------------------


def encode_command(command: Command) -> tuple[bytes, bytes]:
    """Key and value of ``command``, for partition ``COMMAND_PARTITION``."""
    document: dict[str, object] = {
        "command": command.kind.value,
        "run_id": command.run_id,
        "time_ms": command.time_ms,
    }
    if command.epoch is not None:
        document["epoch"] = command.epoch
    if command.version:
        document["version"] = command.version
    if command.base:
        document["base"] = command.base
    if command.order_id:
        document["order_id"] = command.order_id
    key = f"{command.flow}/pause" if command.kind.pauses else command.flow
    return key.encode(), pack(document)


def decode_command(key: bytes | None, value: bytes | None) -> Command | None:
    """The command in a record; None if it holds none."""
    flow = text(key)
    document = unpack(value)
    if not flow or document is None or ASSIGNMENT_KEY.fullmatch(flow):
        return None
    try:
        kind = CommandKind(document["command"])
        if kind.pauses:
            match = _PAUSE_KEY.fullmatch(flow)
            if match is None:
                return None
            flow = match[1]
        return Command(
            flow=flow,
            kind=kind,
            run_id=str(document.get("run_id", "")),
            time_ms=int(document.get("time_ms", 0)),
            epoch=None if document.get("epoch") is None else int(document["epoch"]),
            version=int(document.get("version", 0)),
            order_id=str(document.get("order_id", "")),
            base=int(document.get("base", 0)),
        )
    except MALFORMED:
        return None
