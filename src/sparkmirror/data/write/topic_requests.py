"""Asks the driver for topics that records are routed to and that the target lacks.

Request and answer go through the control topic (`internal_topics.routed_topics`): the driver may be
on another host. The sink waits for the answer, because it takes no other row while it holds one.
Meanwhile it writes, commits and reports as always.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.rows.notes import SlotHello
from sparkmirror.data.write.delivery import ComeRound
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.errors import MirrorError, Unreachable
from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, control_topic
from sparkmirror.internal_topics.routed_topics import (
    NAMES_ASKED_MAX,
    RoutedTopics,
    TopicRequest,
    encode_request,
)
from sparkmirror.model import TopicPartition
from sparkmirror.records.codecs import NONE
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.net.connection import ConnectionLost

__all__ = ["TopicRequests"]

log = logging.getLogger(__name__)

# A busy cluster takes seconds to create a topic.
_ANSWER_S = 5.0
_LOOK_S = 0.02
# A refusal may have a remedy, and a driver that was silent may answer again.
_ASK_AGAIN_S = 30.0
_REFUSED_MAX = 1_000
_LIMIT = "sparkmirror.routing.create.topics.max"


class TopicRequests:
    """Asks for one task. One owner thread.

    ``come_round``: a round of the sink. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        task: SinkTask,
        come_round: ComeRound,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task = task
        self._flow: FlowSettings = task.flow
        self._come_round = come_round
        self._clock = clock
        self._hello: SlotHello | None = None
        self._watch: ControlWatch | None = None
        self._number = 0
        self._refused: dict[str, tuple[str, float]] = {}
        self._full_until = self._silent_until = float("-inf")

    def begin(self, hello: SlotHello) -> None:
        """Take over who the slot is."""
        self._hello = hello

    def ask(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        """Have topics ``names`` created, for records of source topic ``topic``.

        Returns by name why some are not created. Raises `Unreachable` if there is no answer in
        time.
        """
        refused = self._known(names)
        left = [name for name in names if name not in refused]
        while left:
            if self._clock() < self._full_until:
                limit = f"{_LIMIT}={self._flow.routed_topics_max} allows no more topics"
                return refused | dict.fromkeys(left, limit)
            some, left = left[:NAMES_ASKED_MAX], left[NAMES_ASKED_MAX:]
            answer = self._answered(topic, some)
            until = self._clock() + _ASK_AGAIN_S
            for name in some:
                if name in answer.refused:
                    self._refused[name] = answer.refused[name], until
                    refused[name] = answer.refused[name]
            if answer.full:
                self._full_until = until
                left += [
                    name for name in some if name not in refused and name not in answer.created
                ]
        return refused

    def _known(self, names: Sequence[str]) -> dict[str, str]:
        now = self._clock()
        if len(self._refused) > _REFUSED_MAX:
            self._refused = {}
        found = ((name, self._refused.get(name)) for name in names)
        return {name: one[0] for name, one in found if one is not None and now < one[1]}

    def _answered(self, topic: str, names: Sequence[str]) -> RoutedTopics:
        hello = self._hello
        if hello is None or self._clock() < self._silent_until:
            raise self._silent(names)
        # Grows from one attempt of the task to the next, too.
        self._number = max(self._number + 1, int(time.time() * 1000))
        request = TopicRequest(
            hello.channel, hello.run_id, hello.slot, self._number, topic, tuple(names)
        )
        record = Record(0, int(time.time() * 1000), *encode_request(request))
        place = TopicPartition(control_topic(self._flow), PROGRESS_PARTITION)
        batch = memoryview(encode_batch([record], codec=NONE))
        self._task.append_beside(place, batch, None)
        deadline = self._clock() + _ANSWER_S
        while self._clock() < deadline:
            self._come_round()
            answer = self._read(hello)
            if answer is not None and answer.answered.get(hello.slot, -1) >= self._number:
                return answer
            self._task.rest(_LOOK_S)
        self._silent_until = self._clock() + _ASK_AGAIN_S
        raise self._silent(names)

    def _silent(self, names: Sequence[str]) -> Unreachable:
        return Unreachable(
            f"topic {names[0]!r} is missing, and the mirror's driver has not answered whether it "
            "creates it.",
            where=f"cluster {self._flow.target.alias}",
        )

    def _read(self, hello: SlotHello) -> RoutedTopics | None:
        """The driver's newest answer."""
        try:
            if self._watch is None:
                begun = hello.owner or hello.writer
                offset = None if begun is None else begun.control_offset
                self._watch = ControlWatch(self._flow, hello.run_id, offset=offset)
                self._watch.start(_ANSWER_S)
            self._watch.read_to_end()
        except (MirrorError, ConnectionLost, TimeoutError) as error:
            log.warning("flow %s: the control topic cannot be read: %s", self._flow.name, error)
            self.close()
            return None
        return self._watch.routed

    def close(self) -> None:
        """Close the connections."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
