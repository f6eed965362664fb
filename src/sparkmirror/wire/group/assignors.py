"""The assignors of Java's consumer: which member of a group gets which partitions. No I/O.

The group's leader runs one of them for all members, and any kind of client may be the leader. Range
and round robin give the result of Java's class of the same name. The two sticky ones follow the
rules of Java's (`wire.group.sticky`), which allow several results.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from sparkmirror.model import TopicPartition
from sparkmirror.wire.group.sticky import Claims, assign_sticky, withhold_moving
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE

__all__ = [
    "COOPERATIVE_STICKY",
    "Subscription",
    "assign",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

# Version 2 of a subscription has the generation of the owned partitions (KIP-792): without it a
# member that missed a rebalance could claim partitions that it no longer owns.
_SUBSCRIPTION_VERSION = 2
_ASSIGNMENT_VERSION = 0
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")
STICKY = "sticky"
COOPERATIVE_STICKY = "cooperative-sticky"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of one member when it joins.

    ``owned``: the partitions that it owns, or owned before it joined, as of ``generation``.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None


def assign(
    strategy: str, members: Mapping[str, Subscription], partitions: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Assign the partitions of all subscribed topics to ``members`` (by member id).

    ``partitions``: number of partitions of each topic; other topics are left out. Every member is
    in the result. Raises ValueError for an unknown strategy.
    """
    found = _ASSIGNORS.get(strategy)
    if found is None:
        raise ValueError(f"no such assignor: {strategy}")
    assigned = found(members, partitions) if members else {}
    return {member: tuple(sorted(assigned.get(member, ()))) for member in members}


Assigned = dict[str, set[TopicPartition]]


def _in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Member ids as Java sorts them: static members first, by instance id; then by member id."""

    def key(member: str) -> tuple[bool, str]:
        instance = members[member].instance_id
        return (instance is None, member if instance is None else instance)

    return sorted(members, key=key)


def _wanted(members: Mapping[str, Subscription]) -> dict[str, frozenset[str]]:
    return {member: frozenset(one.topics) for member, one in members.items()}


def _range(members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> Assigned:
    """Per topic, consecutive partitions for each member; the first members get one more."""
    assigned: Assigned = {}
    ring, wanted = _in_order(members), _wanted(members)
    for topic in sorted(frozenset().union(*wanted.values())):
        interested = [one for one in ring if topic in wanted[one]]
        share, more = divmod(partitions.get(topic, 0), len(interested))
        begin = 0
        for place, member in enumerate(interested):
            end = begin + share + (place < more)
            assigned.setdefault(member, set()).update(
                TopicPartition(topic, number) for number in range(begin, end)
            )
            begin = end
    return assigned


def _round_robin(members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> Assigned:
    """All partitions in order, each to the next member that subscribes to its topic."""
    assigned: Assigned = {}
    ring, wanted = _in_order(members), _wanted(members)
    at = 0
    for topic in sorted(frozenset().union(*wanted.values())):
        for number in range(partitions.get(topic, 0)):
            while topic not in wanted[ring[at % len(ring)]]:
                at += 1
            assigned.setdefault(ring[at % len(ring)], set()).add(TopicPartition(topic, number))
            at += 1
    return assigned


def _claims(members: Mapping[str, Subscription]) -> Claims:
    return {member: (one.generation, one.owned) for member, one in members.items()}


def _sticky(members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> Assigned:
    return assign_sticky(_wanted(members), _claims(members), partitions)


def _cooperative(members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> Assigned:
    return withhold_moving(_sticky(members, partitions), _claims(members))


_ASSIGNORS: dict[str, Callable[..., Assigned]] = {
    "range": _range,
    "roundrobin": _round_robin,
    STICKY: _sticky,
    COOPERATIVE_STICKY: _cooperative,
}


# --- bytes --------------------------------------------------------------------------------------


def encode_subscription(one: Subscription, strategy: str, *, cooperative: bool) -> bytes:
    """The metadata of ``one`` in a JoinGroup request, for one strategy.

    ``cooperative``: whether the member keeps its partitions while it joins. The leader gives what
    an owner has to others only when the owner joins again without it. An eager member has given up
    all of it already, so it must not claim any of it.
    """
    rows = ConsumerProtocolSubscription.TopicPartition
    owned = _by_topic(one.owned)
    kept = owned if strategy == COOPERATIVE_STICKY and cooperative else {}
    found = ConsumerProtocolSubscription(
        version=_SUBSCRIPTION_VERSION,
        topics=sorted(one.topics),
        user_data=_user_data(one, strategy),
        owned_partitions=[rows(topic=topic, partitions=own) for topic, own in kept.items()],
        generation_id=one.generation,
    )
    return bytes(found.encode())


def _user_data(one: Subscription, strategy: str) -> bytes:
    """What Java's class of this strategy adds to a subscription."""
    if strategy == STICKY and one.owned:
        # The eager sticky assignor's members name their former partitions here.
        return _pack_sticky(_by_topic(one.owned), one.generation)
    if strategy == COOPERATIVE_STICKY:
        # Java's older leaders do not know version 2, and take the generation from here.
        return _INT.pack(one.generation)
    return b""


def decode_subscription(metadata: bytes, strategy: str, instance_id: str | None) -> Subscription:
    """The subscription of a member, of any client. Raises ValueError if it cannot be read."""
    try:
        _check_version(metadata)
        found = ConsumerProtocolSubscription.decode(metadata)
        rows = getattr(found, "owned_partitions", None) or ()
        owned = tuple(TopicPartition(row.topic, n) for row in rows for n in row.partitions)
        generation = getattr(found, "generation_id", -1)
        generation = -1 if generation is None else int(generation)
        topics = tuple(found.topics)
        data = bytes(found.user_data or b"")
        if strategy == STICKY:
            owned, generation = _unpack_sticky(data)
        elif strategy == COOPERATIVE_STICKY and generation < 0 and len(data) >= _INT.size:
            generation = _INT.unpack_from(data)[0]  # of a client that does not know version 2
        if None in topics or any(tp.topic is None for tp in owned):
            raise ValueError("a topic without a name")
    except Exception as error:  # a decoder may raise anything
        raise ValueError(f"no subscription: {error}") from error
    return Subscription(topics, owned, generation, instance_id or None)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


def _pack_sticky(owned: Mapping[str, list[int]], generation: int) -> bytes:
    """``StickyAssignor``'s user data: [topic, [partition]], generation."""
    parts = [_INT.pack(len(owned))]
    for topic, numbers in owned.items():
        name = topic.encode()
        parts += [_SHORT.pack(len(name)), name, _INT.pack(len(numbers))]
        parts += [_INT.pack(number) for number in numbers]
    return b"".join([*parts, _INT.pack(generation)])


def _unpack_sticky(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """(owned partitions, generation). As in Java, unreadable data counts as no partitions."""
    owned: list[TopicPartition] = []
    try:
        at = 4
        for _ in range(_INT.unpack_from(data)[0]):
            size = _SHORT.unpack_from(data, at)[0]
            if size < 0:  # would move back: up to billions of rounds of this loop
                return (), -1
            topic = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            count = _INT.unpack_from(data, at)[0]
            numbers = struct.unpack_from(f">{count}i", data, at + 4)
            owned += [TopicPartition(topic, number) for number in numbers]
            at += 4 + 4 * count
        generation: int = _INT.unpack_from(data, at)[0] if len(data) > at else -1
    except (struct.error, UnicodeDecodeError):
        return (), -1
    return tuple(owned), generation


def encode_assignment(partitions: tuple[TopicPartition, ...]) -> bytes:
    """One member's partitions for a SyncGroup request."""
    topics = sorted(_by_topic(partitions).items())
    return bytes(ConsumerProtocolAssignment(_ASSIGNMENT_VERSION, topics, b"").encode())


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a SyncGroup response; none for an empty assignment.

    Raises ValueError if it cannot be read: the group's leader writes it, not the broker.
    """
    if not data:
        return ()
    try:
        _check_version(data)
        found = ConsumerProtocolAssignment.decode(data)
        return tuple(sorted(TopicPartition(tp.topic, tp.partition) for tp in found.partitions()))
    except UNREADABLE as error:
        raise ValueError(f"no assignment: {error}") from error


def _check_version(data: bytes) -> None:
    """Raise ValueError without a valid version. Newer ones are read as the newest known one."""
    if len(data) < _SHORT.size or _SHORT.unpack_from(data)[0] < 0:
        raise ValueError("it has no version")
