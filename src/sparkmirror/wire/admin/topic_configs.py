"""Requests the configs of any number of topics: hundreds per request, several in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.admin.config_decoder import (
    ConfigReader,
    TopicConfigs,
    describe_configs_request,
)
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.messages import chunks
from sparkmirror.wire.admin.requester import Requester, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from sparkmirror.wire.cluster.views import ConfigEntry

__all__ = ["describe_topic_configs"]

_TOPICS_PER_REQUEST = 250
# In parallel: each goes to the broker with the fewest requests in flight.
_REQUESTS_SIDE_BY_SIDE = 4


def describe_topic_configs(
    requester: Requester, reader: ConfigReader, names: Iterable[str], operation: str
) -> dict[str, Mapping[str, ConfigEntry] | MirrorError]:
    """Configs per topic, or the error for this topic (`TopicError`: it does not exist).

    ``reader``: of this cluster. ``operation``: what errors advise to grant. Raises `MirrorError`
    when a whole request fails.
    """
    asked = list(chunks(sorted(names), _TOPICS_PER_REQUEST))

    def query(chunk: Sequence[str]) -> list[TopicConfigs]:
        rows: list[TopicConfigs] = requester.request(
            partial(describe_configs_request, chunk),
            "describing topic configs",
            read=reader.read,
            needs=Right(operation, "Topic"),
        )
        return rows

    answers = of_each(query, asked, at_most=_REQUESTS_SIDE_BY_SIDE)
    return {row.topic: _found(requester, row, operation) for rows in answers for row in rows}


def _found(
    requester: Requester, row: TopicConfigs, operation: str
) -> Mapping[str, ConfigEntry] | MirrorError:
    if row.error_code == UNKNOWN_TOPIC_OR_PARTITION:
        return TopicError(
            "the topic does not exist: it was deleted, or not all brokers know it yet.",
            where=f"cluster {requester.client.alias}, topic {row.topic}",
        )
    if row.error_code:
        error = error_for(row.error_code, row.error_message)
        doing = f"describing the configs of topic {row.topic}"
        return translate(error, requester.client, doing, needs=Right(operation, "Topic", row.topic))
    return row.configs
