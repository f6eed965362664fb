r"""The control topic: how the driver speaks to the planner and the slots, and hears of them.

One compacted topic per source on the target, ``mm2-sparkmirror.<source>.internal`` (for
MirrorMaker 1's files one per group and source, see `control_topic`); the name falls under
MirrorMaker 2's own ``mm2.*\.internal`` exclude, so no mirror ever carries it on.

=========  =======================  ==========================================================
partition  key                      value (JSON; from 16 KiB up zlib-compressed)
=========  =======================  ==========================================================
0          ``<flow>``               command: run, drain, replan
0          ``<flow>/pause``         command: pause, resume; it outlives runs. Operators ask for it
                                    in a topic of its own, the driver says it here
                                    (`control.coordination.orders_topic`)
0          ``<flow>/assignment``    what to mirror; ``<flow>/assignment/<i>`` when in pieces
0          ``<flow>/claim``         exactly-once: which run writes the flow (`flow_claims`)
1          ``<flow>/<slot>``        progress of one slot, about once a second
1          ``<flow>/planner``       the assignment that all slots of the flow obey by now
1          ``<flow>/driver``        the driver's report, every ten seconds
1          ``<flow>/history/…``     what happened, for ``sparkmirror history`` (`history`)
=========  =======================  ==========================================================

The codecs are pure (`assignments` and `reports` have those of what a flow mirrors and of what is
reported). They take unknown fields in their stride and return None for what is no valid record, so
that a reader can skip it and count it: whoever may write to the topic must not be able to stop a
mirror by a line of garbage.
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
from sparkmirror.model import FlowSettings, MirrorMode

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
    """What a flow's slots are asked to do.

    ``RUN``: go on with the epochs of ``run_id``. ``DRAIN``: write what was read, commit, end the
    query. ``REPLAN``: end the epoch early, the next one is planned from the new assignment.
    ``PAUSE``: keep the positions and fetch nothing. ``RESUME``: undo a pause. These two stand
    under a key of their own, so that neither a later run nor a new assignment undoes a pause.
    """

    RUN = "run"
    DRAIN = "drain"
    REPLAN = "replan"
    PAUSE = "pause"
    RESUME = "resume"

    @property
    def pauses(self) -> bool:
        """Whether it is about pausing: pause or resume."""
        return self in (CommandKind.PAUSE, CommandKind.RESUME)


@dataclass(frozen=True, slots=True)
class Command:
    """The newest order to one flow; ``version`` names the assignment it goes with (0 = none).

    ``order_id``: the order of the orders topic that the driver passes on with it
    (`control.coordination.orders_topic`).
    """

    flow: str
    kind: CommandKind
    run_id: str
    time_ms: int
    epoch: int | None = None
    version: int = 0
    order_id: str = ""


def control_topic(flow: FlowSettings) -> str:
    """Name of the control topic of ``flow``, on its target cluster."""
    return f"{_PREFIX}.{flow.mirror}.internal"


def topic_beside(flow: FlowSettings, what: str) -> str:
    """Name of the flow's topic of ``what``, such as gaps or orders, beside its control topic."""
    return f"{_PREFIX}-{what}{control_topic(flow).removeprefix(_PREFIX)}"


def channel(flow: FlowSettings, run_id: str) -> str:
    """What stands for ``<flow>`` in the keys of the signals of one run.

    The members of one MirrorMaker 1 group use one control topic at the same time, each for its own
    part of the partitions: there every run has keys of its own.
    """
    return f"{flow.name}#{run_id}" if flow.mode is MirrorMode.MM1 else flow.name


def run_of(key: str, flow: str) -> str:
    """The run whose `channel` ``key`` is, if it is one of ``flow``'s; else empty."""
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
    if command.order_id:
        document["order_id"] = command.order_id
    key = f"{command.flow}/pause" if command.kind.pauses else command.flow
    return key.encode(), pack(document)


def decode_command(key: bytes | None, value: bytes | None) -> Command | None:
    """The command in a record, None when it holds none."""
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
        )
    except MALFORMED:
        return None
