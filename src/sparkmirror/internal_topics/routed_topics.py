"""Topics that records are routed to and that the target lacks: slots ask for them.

A slot writes ``<flow>/<slot>/topics`` into the progress partition of the control topic. The driver
creates what may be created, and answers with ``<flow>/topics`` in the command partition. The answer
outlives runs: it names the topics that the mirror has created, whose number is limited.

The codecs are pure, and return None for any other record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.signing import Signer

__all__ = [
    "NAMES_ASKED_MAX",
    "RoutedTopics",
    "TopicRequest",
    "decode_request",
    "decode_routed",
    "encode_request",
    "encode_routed",
    "is_routed_key",
]

NAMES_ASKED_MAX = 200
"""How many topics one request may name."""

_REQUEST_KEY = re.compile(r"(.+)/(\d{1,9})/topics")
_NAME_CHARS_MAX = 249


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A slot waits for topics ``names``, to which records of source topic ``topic`` go.

    ``flow``: the run's channel. ``number`` grows with each request of the slot.
    """

    flow: str
    run_id: str
    slot: int
    number: int
    topic: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoutedTopics:
    """The driver's answer to all requests of ``run_id``. ``flow``: the run's channel.

    ``created``: topics that the mirror has created because records named them. ``full``: there may
    be no more of them. ``refused``: why the newest others were not created, by name. ``answered``:
    the number of the newest request of each slot that this is about.
    """

    flow: str
    run_id: str
    created: tuple[str, ...] = ()
    full: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    answered: Mapping[int, int] = field(default_factory=dict)


def encode_request(request: TopicRequest) -> tuple[bytes, bytes]:
    """Key and value of ``request``, for partition ``PROGRESS_PARTITION``."""
    document: dict[str, object] = {
        "run_id": request.run_id,
        "number": request.number,
        "topic": request.topic,
        "names": list(request.names),
    }
    return f"{request.flow}/{request.slot}/topics".encode(), pack(document)


def decode_request(key: bytes | None, value: bytes | None) -> TopicRequest | None:
    """The request in a record; None if it holds none."""
    match = _REQUEST_KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        names = tuple(map(str, document["names"]))
        if len(names) > NAMES_ASKED_MAX or any(len(one) > _NAME_CHARS_MAX for one in names):
            return None
        return TopicRequest(
            *(match[1], str(document["run_id"]), int(match[2])),
            *(int(document["number"]), str(document["topic"]), names),
        )
    except MALFORMED:
        return None


def encode_routed(routed: RoutedTopics, signer: Signer | None = None) -> tuple[bytes, bytes]:
    """Key and value of ``routed``, for partition ``COMMAND_PARTITION``; ``signer`` signs them."""
    key = f"{routed.flow}/topics"
    document: dict[str, object] = {
        "run_id": routed.run_id,
        "created": list(routed.created),
        "full": routed.full,
        "refused": dict(routed.refused),
        "answered": {str(slot): number for slot, number in routed.answered.items()},
    }
    return key.encode(), pack(document if signer is None else signer.sign(key, document))


def is_routed_key(key: bytes | None) -> bool:
    """Whether ``key`` is that of `encode_routed`."""
    return text(key).endswith("/topics")


def decode_routed(
    flow: str, key: bytes | None, value: bytes | None, signer: Signer | None = None
) -> RoutedTopics | None:
    """The answer to ``flow`` in a record; None if it holds none, or none that ``signer`` signed."""
    if text(key) != f"{flow}/topics":
        return None
    document = unpack(value)
    try:
        if document is None or (signer is not None and not signer.verify(text(key), document)):
            return None
        return RoutedTopics(
            flow,
            str(document["run_id"]),
            tuple(map(str, document["created"])),
            bool(document["full"]),
            {str(name): str(reason) for name, reason in document["refused"].items()},
            {int(slot): int(number) for slot, number in document["answered"].items()},
        )
    except (*MALFORMED, RecursionError):
        return None
