"""Settings rows of MirrorMaker 1's place in its consumer group, and their typed settings."""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.config.properties import Entry
from sparkmirror.config.setting import Scope, Setting, Status, Type
from sparkmirror.errors import ConfigError
from sparkmirror.model import GroupSettings

__all__ = ["GROUP_ROWS", "group_settings"]

_CONSUMER = (Scope.CONSUMER,)
_G = GroupSettings()
_JAVA = "org.apache.kafka.clients.consumer."
_STRATEGIES = {
    f"{_JAVA}RangeAssignor": "range",
    f"{_JAVA}RoundRobinAssignor": "roundrobin",
    f"{_JAVA}StickyAssignor": "sticky",
    f"{_JAVA}CooperativeStickyAssignor": "cooperative-sticky",
}
_SHORT = tuple(_STRATEGIES.values())

GROUP_ROWS = (
    Setting(
        "group.id", Type.STRING, None,
        "MirrorMaker 1: consumer group on the source that deals the partitions and keeps the "
        "positions; required there.", _CONSUMER,
    ),
    Setting(
        "session.timeout.ms", Type.INT, str(_G.session_timeout_ms),
        "MirrorMaker 1: silence after which the group gives a member's partitions to others.",
        _CONSUMER, low=1,
    ),
    Setting(
        "heartbeat.interval.ms", Type.INT, str(_G.heartbeat_interval_ms),
        "MirrorMaker 1: time between two heartbeats to the group; less than session.timeout.ms.",
        _CONSUMER, low=1,
    ),
    Setting(
        "max.poll.interval.ms", Type.INT, str(_G.rebalance_timeout_ms),
        "MirrorMaker 1: how long a rebalance waits for a member to write what it has read.",
        _CONSUMER, low=1,
    ),
    Setting(
        "partition.assignment.strategy", Type.LIST, ",".join(list(_STRATEGIES)[i] for i in (0, 3)),
        "MirrorMaker 1: assignors in order of preference; all members need one in common.",
        _CONSUMER, choices=(*_STRATEGIES, *_SHORT),
        empty_allowed=False,
    ),
    Setting(
        "group.instance.id", Type.STRING, None,
        "MirrorMaker 1: name of a static member: the group waits session.timeout.ms for it to "
        "come back before it gives its partitions to others.", _CONSUMER,
    ),
    Setting(
        "group.protocol", Type.STRING, "classic",
        "Group protocol; the classic one is spoken, which MirrorMaker 1 spoke, too.", _CONSUMER,
        choices=("classic", "consumer"), fold_case=True, status=Status.IGNORED,
        reason="the classic protocol is spoken with every group",
    ),
    Setting(
        "group.remote.assignor", Type.STRING, None, "Assignor on the broker.", _CONSUMER,
        status=Status.IGNORED, reason="it belongs to group.protocol=consumer",
    ),
)  # fmt: skip


def group_settings(
    conf: Mapping[str, Entry], *, listener: str = "", listener_args: str | None = None
) -> GroupSettings:
    """How the mirror takes part in the group. ConfigError where the keys contradict each other."""
    # The reader needs the whole table, of which these rows are a part.
    from sparkmirror.config.values import Reader  # noqa: PLC0415

    reader = Reader(conf, Scope.CONSUMER)
    session_ms = reader.integer("session.timeout.ms")
    heartbeat_ms = reader.integer("heartbeat.interval.ms")
    if heartbeat_ms >= session_ms:
        key = (
            "heartbeat.interval.ms"
            if reader.given("heartbeat.interval.ms")
            else "session.timeout.ms"
        )
        raise ConfigError(
            f"heartbeat.interval.ms ({heartbeat_ms}) must be less than session.timeout.ms "
            f"({session_ms}).",
            where=conf[key].where,
            do="Set the interval to a third of the timeout.",
        )
    chosen = [
        _STRATEGIES.get(name, name) for name in reader.elements("partition.assignment.strategy")
    ]
    return GroupSettings(
        strategies=tuple(dict.fromkeys(chosen)),
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=heartbeat_ms,
        rebalance_timeout_ms=reader.integer("max.poll.interval.ms"),
        instance_id=reader.text("group.instance.id"),
        listener=listener,
        listener_args=listener_args,
    )
