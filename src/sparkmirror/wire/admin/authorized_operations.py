"""The permissions of this client, as brokers report them (KIP-430); nothing is tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafka.protocol.metadata import MetadataRequest

from sparkmirror.errors import MirrorError
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.leaders import Leaders
from sparkmirror.wire.admin.requester import Requester, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.error_codes import TOPIC_AUTHORIZATION_FAILED

__all__ = ["literal_errors", "rights_of", "topic_rights"]

_OPERATIONS = {
    3: "Read", 4: "Write", 5: "Create", 6: "Delete", 7: "Alter", 8: "Describe",
    9: "ClusterAction", 10: "DescribeConfigs", 11: "AlterConfigs", 12: "IdempotentWrite",
}  # fmt: skip


def topic_rights(requester: Requester, names: Sequence[str]) -> dict[str, frozenset[str] | None]:
    """The client's permissions on each topic that exists; None: the broker cannot tell.

    A topic that may not be described has none; one that does not exist is missing. Raises
    `MirrorError`.
    """
    if not names:
        return {}
    row = MetadataRequest.MetadataRequestTopic
    response = requester.request(
        lambda: MetadataRequest(
            topics=[row(name=name) for name in sorted(names)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            min_version=4,
        ),
        "describing permissions",
    )
    found: dict[str, frozenset[str] | None] = {}
    for topic in response.topics:
        if topic.error_code == TOPIC_AUTHORIZATION_FAILED:
            found[topic.name] = frozenset()
        elif topic.partitions:
            found[topic.name] = rights_of(getattr(topic, "authorized_operations", None))
    return found


def rights_of(numbers: Iterable[int] | None) -> frozenset[str] | None:
    """The operations with these protocol numbers, as ``kafka-acls.sh`` spells them."""
    if numbers is None:
        return None
    return frozenset(_OPERATIONS[number] for number in numbers if number in _OPERATIONS)


def literal_errors(
    requester: Requester, leaders: Leaders, names: Sequence[str], operation: str
) -> dict[str, MirrorError]:
    """Errors of the topics in ``names`` that cannot be described. Raises `MirrorError`.

    ``operation``: what an error advises to grant.
    """
    if not names:
        return {}
    response = leaders.metadata(sorted(names))
    return {
        topic.name: translate(
            error_for(topic.error_code),
            requester.client,
            f"describing topic {topic.name}",
            needs=Right(operation, "Topic", topic.name),
        )
        for topic in response.topics
        if topic.error_code
    }
