"""Creates, grows and alters topics, in batches. For `wire.admin.cluster.Cluster`.

The error of one topic in a batch is part of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sparkmirror.errors import MirrorError
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.messages import (
    alter_configs_request,
    by_records,
    create_partitions_request,
    create_topics_request,
    creation_records,
    not_controller,
)
from sparkmirror.wire.admin.requester import CONTROLLER, Requester, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.views import NewTopic, TopicOutcome
from sparkmirror.wire.protocol_errors import code_of

__all__ = ["alter_topic_configs", "create_topics", "grow_topics"]

_TOPIC_EXISTS = code_of("TOPIC_ALREADY_EXISTS")
_INVALID_PARTITIONS = code_of("INVALID_PARTITIONS")
# The controller may do later, or has done meanwhile, what it refuses with these.
_PASSING = frozenset(map(code_of, ("REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED")))
_CONFIG_TOPICS_PER_REQUEST = 250
_TOPICS_PER_REQUEST = 100


def alter_topic_configs(
    requester: Requester, changes: Mapping[str, Mapping[str, str | None]]
) -> dict[str, TopicOutcome]:
    """Set configs per topic (None: back to the default); one outcome per topic.

    Other configs stay as they are. A topic is changed completely or not at all. Raises
    `MirrorError`.
    """
    result: dict[str, TopicOutcome] = {}
    pieces = by_records(
        sorted(changes), lambda name: len(changes[name]), _CONFIG_TOPICS_PER_REQUEST
    )
    for names in pieces:
        response = requester.request(
            partial(alter_configs_request, {name: changes[name] for name in names}),
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


def create_topics(
    requester: Requester,
    topics: Sequence[NewTopic],
    *,
    patience_s: float | None = None,
    validate_only: bool = False,
) -> dict[str, TopicOutcome]:
    """Create each of ``topics`` that is missing; one outcome per topic.

    An existing topic is left as it is and counts as success. What is refused for the moment is
    asked for again, for at most ``patience_s`` (None: a request timeout). ``validate_only``: a dry
    run. Raises `MirrorError`.
    """
    wanted = {topic.name: topic for topic in topics}
    answers = _asked(
        requester,
        {name: creation_records(topic) for name, topic in wanted.items()},
        lambda names: create_topics_request(
            [wanted[name] for name in names],
            requester.client.request_timeout_ms,
            validate_only=validate_only,
        ),
        "creating topics",
        Right("Create", "Topic", note="(or on the Cluster)"),
        patience_s,
    )
    return {name: _created(requester, name, one.row) for name, one in answers.items()}


def _created(requester: Requester, name: str, row: Any) -> TopicOutcome:
    if row.error_code == _TOPIC_EXISTS:
        return TopicOutcome(name, existed=True)
    if not row.error_code:
        return TopicOutcome(name)
    needs = Right("Create", "Topic", name, "(or on the Cluster)")
    return TopicOutcome(name, _error(requester, row, f"creating topic {name}", needs))


def grow_topics(
    requester: Requester, counts: Mapping[str, int], *, patience_s: float | None = None
) -> dict[str, TopicOutcome]:
    """Raise topics to the given partition counts; one outcome per topic.

    What is refused for the moment is asked for again, for at most ``patience_s`` (None: a request
    timeout). Raises `MirrorError`.
    """
    answers = _asked(
        requester,
        counts,  # the partitions that a topic has already are not known here
        lambda names: create_partitions_request(
            {name: counts[name] for name in names}, requester.client.request_timeout_ms
        ),
        "adding partitions",
        Right("Alter", "Topic"),
        patience_s,
    )
    return {name: _grown(requester, name, one) for name, one in answers.items()}


def _grown(requester: Requester, name: str, answer: _Answer) -> TopicOutcome:
    code = answer.row.error_code
    # The topic has as many partitions: a request that timed out has added them after all.
    if not code or (answer.repeated and code == _INVALID_PARTITIONS):
        return TopicOutcome(name)
    needs = Right("Alter", "Topic", name)
    doing = f"adding partitions to topic {name}"
    return TopicOutcome(name, _error(requester, answer.row, doing, needs))


class _Answer(NamedTuple):
    """The ``row`` of a topic in the last response. ``repeated``: it was not the first one."""

    row: Any
    repeated: bool


def _asked(
    requester: Requester,
    records: Mapping[str, int],
    make: Callable[[Sequence[str]], Any],
    doing: str,
    needs: Right,
    patience_s: float | None,
) -> dict[str, _Answer]:
    """The controller's answers for the topics of ``records``, by topic. Raises `MirrorError`.

    ``records``: how many records the controller writes for a topic. Topics that it refuses for the
    moment are asked for again after the others. From the first of them on, that takes at most
    ``patience_s``; topics that were not asked for until then have the answer of a refused one.
    """
    answers: dict[str, _Answer] = {}
    client = requester.client
    backoff_s, deadline = client.retry_backoff_ms / 1000, 0.0
    if patience_s is None:
        patience_s = client.request_timeout_ms / 1000
    left = list(records)
    while left:
        names = next(by_records(left, records.__getitem__, _TOPICS_PER_REQUEST))
        response = requester.request(
            partial(make, names),
            doing,
            node=CONTROLLER,
            check=not_controller,
            needs=needs,
            apart=True,  # a quota on new partitions holds up nothing else
        )
        rows = {row.name: row for row in getattr(response, "topics", None) or response.results}
        answers |= {name: _Answer(row, name in answers) for name, row in rows.items()}
        refused = [name for name, row in rows.items() if row.error_code in _PASSING]
        left = left[len(names) :] + refused
        if not refused:
            continue
        now_s = time.monotonic()
        deadline = deadline or now_s + patience_s
        # The quota allows nothing before.
        pause_s = max(backoff_s, getattr(response, "throttle_time_ms", 0) / 1000)
        if now_s + pause_s >= deadline or not requester.pause(pause_s):
            return dict.fromkeys(left, answers[refused[0]]) | answers
        backoff_s = min(2 * backoff_s, client.retry_backoff_ms_max / 1000)
    return answers


def _error(requester: Requester, row: Any, doing: str, needs: Right) -> MirrorError:
    """The error in one topic's row of a response."""
    message = getattr(row, "error_message", None)  # not in every version
    return translate(error_for(row.error_code, message), requester.client, doing, needs=needs)
