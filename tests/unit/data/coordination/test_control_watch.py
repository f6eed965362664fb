"""A control topic that was cut off is read again, whenever that shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.model import TopicPartition

COMMANDS = TopicPartition("control", 0)


def test_a_topic_that_was_cut_off_just_before_a_fetch_is_read_again() -> None:
    """The fetch has found that out; meanwhile the log has grown past the offset."""
    happened: list[str] = []

    def read_again() -> bool:
        happened.append("again")
        watch.truncated = False
        watch.offset = 0
        return True

    def send() -> None:
        happened.append("fetch")
        watch.offset = 30

    watch: Any = SimpleNamespace(
        _commands=COMMANDS, offset=20, truncated=True, _read_again=read_again,
        connections=SimpleNamespace(list_offsets=lambda *_, **__: {COMMANDS: 30}),
        flow=SimpleNamespace(target=SimpleNamespace(request_timeout_ms=200)),
        fetcher=SimpleNamespace(send=send, waiting={}),
    )  # fmt: skip
    assert not ControlWatch.read_to_end(watch)
    assert happened == ["again"]
    assert ControlWatch.read_to_end(watch)
    assert happened == ["again", "fetch"]
