"""Creates, grows and alters topics, in batches. For `wire.admin.cluster.Cluster`.

The error of one topic in a batch is part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sparkmirror.errors import MirrorError
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.messages import (
    alter_configs_request,
    chunks,
    create_partitions_request,
    create_topics_request,
    not_controller,
)
from sparkmirror.wire.admin.requester import CONTROLLER, Requester, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.views import NewTopic, TopicOutcome

__all__ = ["alter_topic_configs", "create_topics", "grow_topics"]

_TOPIC_EXISTS = 36
_CONFIG_TOPICS_PER_REQUEST = 250
_CREATE_TOPICS_PER_REQUEST = 100


def alter_topic_configs(
    requester: Requester, changes: Mapping[str, Mapping[str, str | None]]
) -> dict[str, TopicOutcome]:
    """Set configs per topic (None: back to the default); one outcome per topic.

    Other configs stay as they are. A topic is changed completely or not at all. Raises
    `MirrorError`.
    """
    result: dict[str, TopicOutcome] = {}
    for chunk in chunks(sorted(changes), _CONFIG_TOPICS_PER_REQUEST):
        response = requester.request(
            partial(alter_configs_request, {name: changes[name] for name in chunk}),
            "altering topic configs",
            needs=Right("AlterConfigs", "Topic"),
        )
        for row in response.responses:
            name, error = row.resource_name, None
            if row.error_code:
                doing = f"altering the configs of topic {name}"
                error = _error(requester, row, doing, Right("AlterConfigs", "Topic", name))
            result[name] = TopicOutcome(name, error)
    return result


def create_topics(requester: Requester, topics: Sequence[NewTopic]) -> dict[str, TopicOutcome]:
    """Create each of ``topics`` that is missing; one outcome per topic.

    An existing topic is left as it is and counts as success. Raises `MirrorError`.
    """
    result: dict[str, TopicOutcome] = {}
    for chunk in chunks(topics, _CREATE_TOPICS_PER_REQUEST):
        response = requester.request(
            partial(create_topics_request, chunk, requester.client.request_timeout_ms),
            "creating topics",
            node=CONTROLLER,
            check=not_controller,
            needs=Right("Create", "Topic", note="(or on the Cluster)"),
        )
        for row in response.topics:
            result[row.name] = _created(requester, row)
    return result


def _created(requester: Requester, row: Any) -> TopicOutcome:
    if row.error_code == _TOPIC_EXISTS:
        return TopicOutcome(row.name, existed=True)
    if not row.error_code:
        return TopicOutcome(row.name)
    needs = Right("Create", "Topic", row.name, "(or on the Cluster)")
    return TopicOutcome(row.name, _error(requester, row, f"creating topic {row.name}", needs))


def grow_topics(requester: Requester, counts: Mapping[str, int]) -> dict[str, TopicOutcome]:
    """Raise topics to the given partition counts; one outcome per topic. Raises `MirrorError`."""
    if not counts:
        return {}
    response = requester.request(
        partial(create_partitions_request, counts, requester.client.request_timeout_ms),
        "adding partitions",
        node=CONTROLLER,
        check=not_controller,
        needs=Right("Alter", "Topic"),
    )
    result = {}
    for row in response.results:
        error = None
        if row.error_code:
            doing = f"adding partitions to topic {row.name}"
            error = _error(requester, row, doing, Right("Alter", "Topic", row.name))
        result[row.name] = TopicOutcome(row.name, error)
    return result


def _error(requester: Requester, row: Any, doing: str, needs: Right) -> MirrorError:
    """The error in one topic's row of a response."""
    message = getattr(row, "error_message", None)  # not in every version
    return translate(error_for(row.error_code, message), requester.client, doing, needs=needs)
