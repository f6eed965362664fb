"""The record of a flow's newest deal in the control topic, under ``<flow>/deal``. Pure codec.

The driver writes it when something moves. The planner follows the newest one of its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.deals.dealing import Deal, Move
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition

__all__ = [
    "MOVES_SHOWN_MAX",
    "WEIGHT_MAX",
    "DealRecord",
    "deal_key",
    "decode_deal",
    "encode_deal",
    "flow_of",
]

_SUFFIX = "/deal"
WEIGHT_MAX = 10**15
MOVES_SHOWN_MAX = 100
"""So many moves are in the record; a larger deal is rare, and its reasons repeat."""


@dataclass(frozen=True, slots=True)
class DealRecord:
    """A deal of run ``run_id``. ``flow``: the run's channel. ``number`` grows within the run.

    ``weights``: of each slot when the deal was made (bytes per second, `Load.weight`).
    ``version``: the deal counts from this version of the assignment on, 0 for at once.
    ``moved``: how many partitions moved; ``deal.moves`` has the first `MOVES_SHOWN_MAX` of them.
    """

    flow: str
    run_id: str
    number: int
    time_ms: int
    deal: Deal
    weights: tuple[int, ...]
    moved: int
    version: int = 0


def deal_key(flow: str) -> str:
    """The key of the record of `channel` ``flow``."""
    return f"{flow}{_SUFFIX}"


def flow_of(key: bytes | None) -> str:
    """The channel in a key of `deal_key`; empty for any other key."""
    name = text(key)
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else ""


def encode_deal(record: DealRecord, signer: Signer | None = None) -> tuple[bytes, bytes]:
    """Key and value of ``record``, for partition ``COMMAND_PARTITION``; ``signer`` signs it."""
    slots: list[object] = []
    for number, share in enumerate(record.deal.slots):
        topics: dict[str, list[int]] = {}
        for tp in share:
            topics.setdefault(tp.topic, []).append(tp.partition)
        slots.append([record.weights[number], number in record.deal.apart, topics])
    document: dict[str, object] = {
        "run_id": record.run_id,
        "number": record.number,
        "time_ms": record.time_ms,
        "slots": slots,
        "version": record.version,
        "moved": record.moved,
        "moves": [
            [*move.tp, move.before, move.after, move.reason]
            for move in record.deal.moves[:MOVES_SHOWN_MAX]
        ],
    }
    key = deal_key(record.flow)
    return key.encode(), pack(document if signer is None else signer.sign(key, document))


def decode_deal(
    flow: str, key: bytes | None, value: bytes | None, signer: Signer | None = None
) -> DealRecord | None:
    """The deal of ``flow`` in a record; None if it holds none, or none that ``signer`` signed."""
    if text(key) != deal_key(flow):
        return None
    document = unpack(value)
    try:
        if document is None or (signer is not None and not signer.verify(text(key), document)):
            return None
        return _read(flow, document)
    except (*MALFORMED, RecursionError):
        return None


def _read(flow: str, document: Mapping[str, Any]) -> DealRecord:
    slots, weights, apart = [], [], set()
    for number, (weight, is_apart, topics) in enumerate(document["slots"]):
        if not 0 <= int(weight) <= WEIGHT_MAX:
            raise ValueError("no weight")
        weights.append(int(weight))
        slots.append(
            tuple(TopicPartition(str(t), int(n)) for t, numbers in topics.items() for n in numbers)
        )
        if is_apart:
            apart.add(number)
    moves = tuple(
        Move(TopicPartition(str(topic), int(partition)), int(before), int(after), str(reason))
        for topic, partition, before, after, reason in document["moves"]
    )
    return DealRecord(
        flow,
        str(document["run_id"]),
        int(document["number"]),
        int(document["time_ms"]),
        Deal(tuple(slots), frozenset(apart), moves),
        tuple(weights),
        int(document["moved"]),
        int(document["version"]),
    )
