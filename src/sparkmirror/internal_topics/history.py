"""History of a flow: one record per event, in the control topic beside the reports.

Drivers write it, ``sparkmirror history`` reads it. The topic is compacted and each event has its
own key, ``<flow>/history/<run>-<n>`` in `PROGRESS_PARTITION`; ``n`` starts again at 0 after
`RUN_MAX` events. Every start deletes all events of the flow but the newest `KEPT_MAX`.

The codecs are pure, and return None for any other record.
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
"""Largest number of events of one run; newer events overwrite the oldest."""
KEPT_MAX = 1_000
"""Largest number of events of a flow that a start keeps."""
TEXT_CHARS_MAX = 2_000
"""Largest number of characters of an event's text that are kept."""

_KEY = re.compile(r"(.+)/history/[^/]+-\d{1,9}")


class EventKind(StrEnum):
    """Kind of an event.

    ``LOST``: a run ended without a last report. ``TAKEOVER``: another run had the flow until now.
    ``GOES_ON``: a halted partition is mirrored again. ``REPAIR``: records that the target lost are
    written again. ``THROTTLE``: a limit was set, changed or removed, or its daily window began or
    ended. ``TABLES``: static tables were read again.
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
    THROTTLE = "throttle"
    TABLES = "tables"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of ``flow``, written by the driver of ``run_id`` on ``host``.

    ``code``: code of a halt, gap or error; empty if there is none. ``time_ms``: epoch ms, by the
    driver's clock.
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
    """Whether ``key`` is the key of an event."""
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
    """The event in a record; None if it holds none."""
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
