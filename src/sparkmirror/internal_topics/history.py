"""What happened to a flow: one record for each event, among the reports in the control topic.

Written by drivers, read by ``sparkmirror history``. The topic is compacted and each event has a key
of its own: ``<flow>/history/<run>-<n>`` in `PROGRESS_PARTITION`, ``n`` going round at `RUN_MAX`.
Every start takes out what is beyond the newest `KEPT_MAX`.

The codecs are pure, and give None for what is no event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack

__all__ = [
    "KEPT_MAX",
    "RUN_MAX",
    "TEXT_CHARS_MAX",
    "Event",
    "EventKind",
    "decode_event",
    "encode_event",
    "event_key",
    "is_event_key",
]

RUN_MAX = 300
"""Events of one run; the newest take the places of the oldest."""
KEPT_MAX = 1_000
"""Events of a flow that a start leaves."""
TEXT_CHARS_MAX = 2_000
"""Of an event's text, what is kept."""

_KEY = re.compile(r"(.+)/history/[^/]+-\d{1,9}")


class EventKind(StrEnum):
    """What an event is about.

    ``LOST``: a run ended without a word. ``TAKEOVER``: another run had the flow until now.
    ``GOES_ON``: what was halted is mirrored again. ``REPAIR``: what the target lost is written
    again.
    """

    START = "start"
    STOP = "stop"
    LOST = "lost"
    TAKEOVER = "takeover"
    HALT = "halt"
    GOES_ON = "goes-on"
    GAP = "gap"
    REPAIR = "repair"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of ``flow``, as the driver of ``run_id`` on ``host`` saw it.

    ``code``: that of a halt, gap or error, where there is one. ``time_ms``: by the driver's clock.
    """

    flow: str
    time_ms: int
    kind: EventKind
    text: str
    code: str = ""
    run_id: str = ""
    host: str = ""


def event_key(flow: str, run_id: str, number: int) -> bytes:
    """Key of the ``number``-th event of a run."""
    return f"{flow}/history/{run_id}-{number % RUN_MAX}".encode()


def is_event_key(key: bytes | None) -> bool:
    """Whether an event stands under ``key``."""
    return _KEY.fullmatch(text(key)) is not None


def encode_event(event: Event, number: int) -> tuple[bytes, bytes]:
    """Key and value of the ``number``-th event of its run."""
    document = {
        "time_ms": event.time_ms,
        "kind": event.kind.value,
        "text": event.text[:TEXT_CHARS_MAX],
        "code": event.code,
        "run_id": event.run_id,
        "host": event.host,
    }
    return event_key(event.flow, event.run_id, number), pack(document)


def decode_event(key: bytes | None, value: bytes | None) -> Event | None:
    """The event in a record, None when it holds none."""
    match = _KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        return Event(
            flow=match[1],
            time_ms=int(document["time_ms"]),
            kind=EventKind(document["kind"]),
            text=str(document["text"])[:TEXT_CHARS_MAX],
            code=str(document.get("code", "")),
            run_id=str(document.get("run_id", "")),
            host=str(document.get("host", "")),
        )
    except MALFORMED:
        return None
