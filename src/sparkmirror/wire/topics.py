"""Topics made, grown, described and altered, in batches. For `wire.client.Cluster`.

What fails for one topic of a batch is part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.wire.faults import translate
from sparkmirror.wire.grants import Right
from sparkmirror.wire.kafka_codes import UNKNOWN_TOPIC_OR_PARTITION
from sparkmirror.wire.link import CONTROLLER, Link, error_for
from sparkmirror.wire.requests import (
    alter_configs_request,
    chunks,
    config_entry,
    create_partitions_request,
    create_topics_request,
    describe_configs_request,
    not_controller,
)
from sparkmirror.wire.views import ConfigEntry, NewTopic, TopicOutcome

__all__ = ["alter_topic_configs", "create_topics", "grow_topics", "topic_configs"]

T = TypeVar("T")
R = TypeVar("R")

_TOPIC_EXISTS = 36
_CONFIG_TOPICS_PER_REQUEST = 250
_CREATE_TOPICS_PER_REQUEST = 100
# So many at once: each goes to the broker that has the least to do.
_REQUESTS_SIDE_BY_SIDE = 4


def topic_configs(
    link: Link, names: Iterable[str], operation: str
) -> dict[str, dict[str, ConfigEntry] | MirrorError]:
    """Settings per topic, or the error that asking for this topic gave (`TopicError`: there is
    no such topic). Raises `MirrorError`.

    ``operation``: what errors advise to grant.
    """
    result: dict[str, dict[str, ConfigEntry] | MirrorError] = {}
    doing, needs = "describing topic configs", Right(operation, "Topic")

    def ask(chunk: Sequence[str]) -> Any:
        return link.request(partial(describe_configs_request, chunk), doing, needs=needs)

    for response in _side_by_side(ask, chunks(sorted(names), _CONFIG_TOPICS_PER_REQUEST)):
        for row in response.results:
            name = row.resource_name
            if row.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                result[name] = TopicError(
                    "the topic does not exist: it was deleted, or the brokers do not all know "
                    "it yet.",
                    where=f"cluster {link.client.alias}, topic {name}",
                )
            elif row.error_code:
                doing_one = f"describing the configs of topic {name}"
                result[name] = _error(link, row, doing_one, Right(operation, "Topic", name))
            else:
                result[name] = {c.name: config_entry(c) for c in row.configs}
    return result


def alter_topic_configs(
    link: Link, changes: Mapping[str, Mapping[str, str | None]]
) -> dict[str, TopicOutcome]:
    """Set configs per topic (None: back to the default); one outcome per topic.

    What is not named stays as it is. A topic is changed wholly or not at all. Raises
    `MirrorError`.
    """
    result: dict[str, TopicOutcome] = {}
    for chunk in chunks(sorted(changes), _CONFIG_TOPICS_PER_REQUEST):
        response = link.request(
            partial(alter_configs_request, {name: changes[name] for name in chunk}),
            "altering topic configs",
            needs=Right("AlterConfigs", "Topic"),
        )
        for row in response.responses:
            name, error = row.resource_name, None
            if row.error_code:
                doing = f"altering the configs of topic {name}"
                error = _error(link, row, doing, Right("AlterConfigs", "Topic", name))
            result[name] = TopicOutcome(name, error)
    return result


def create_topics(link: Link, topics: Sequence[NewTopic]) -> dict[str, TopicOutcome]:
    """Create each of ``topics`` that is missing; one outcome per topic.

    An existing topic is left as it is and counts as success. Raises `MirrorError`.
    """
    result: dict[str, TopicOutcome] = {}
    for chunk in chunks(topics, _CREATE_TOPICS_PER_REQUEST):
        response = link.request(
            partial(create_topics_request, chunk, link.client.request_timeout_ms),
            "creating topics",
            node=CONTROLLER,
            check=not_controller,
            needs=Right("Create", "Topic", note="(or on the Cluster)"),
        )
        for row in response.topics:
            result[row.name] = _created(link, row)
    return result


def _created(link: Link, row: Any) -> TopicOutcome:
    if row.error_code == _TOPIC_EXISTS:
        return TopicOutcome(row.name, existed=True)
    if not row.error_code:
        return TopicOutcome(row.name)
    needs = Right("Create", "Topic", row.name, "(or on the Cluster)")
    return TopicOutcome(row.name, _error(link, row, f"creating topic {row.name}", needs))


def grow_topics(link: Link, counts: Mapping[str, int]) -> dict[str, TopicOutcome]:
    """Raise topics to the given partition counts; one outcome per topic. Raises `MirrorError`."""
    if not counts:
        return {}
    response = link.request(
        partial(create_partitions_request, counts, link.client.request_timeout_ms),
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
            error = _error(link, row, doing, Right("Alter", "Topic", row.name))
        result[row.name] = TopicOutcome(row.name, error)
    return result


def _error(link: Link, row: Any, doing: str, needs: Right) -> MirrorError:
    """What one topic's row of an answer complains of."""
    message = getattr(row, "error_message", None)  # not in every version
    return translate(error_for(row.error_code, message), link.client, doing, needs=needs)


def _side_by_side(ask: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """``ask`` of each item, in order, a few of them at once. Raises what the first one raised."""
    wanted = list(items)
    if len(wanted) < 2:
        yield from map(ask, wanted)
        return
    with ThreadPoolExecutor(min(_REQUESTS_SIDE_BY_SIDE, len(wanted)), "ask") as pool:
        yield from pool.map(ask, wanted)
