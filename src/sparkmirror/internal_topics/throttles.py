"""Records about limits on what a flow reads: operators' orders, and what the driver makes of them.

In the orders topic, ``<flow>/throttle`` is the newest order about the limit of a flow, and
``<flow>/throttle/<regex>`` about the limit of some of its topics. They outlive runs. The driver
joins them with the settings, divides each rate between the slots, and writes the result into the
control topic under ``<flow>/limits``. Slots obey the newest record of their run.

The codecs are pure, and return None for any other record.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.settings import ThrottleRule

__all__ = [
    "Limits",
    "SharedLimit",
    "ThrottleOrder",
    "decode_limits",
    "decode_throttle",
    "encode_limits",
    "encode_throttle",
    "is_limits_key",
    "read_rule",
    "rule_row",
]

_KIND = "throttle"
_ID_CHARS_MAX = 64
_REGEX_CHARS_MAX = 1_000
_LIMITS_MAX = 64
_BYTES_S_MAX = 10**12


@dataclass(frozen=True, slots=True)
class ThrottleOrder:
    """An order about one limit of ``flow``: ``rule`` replaces what the settings say about it.

    ``reset``: the settings apply again. ``order_id`` is unique.
    """

    flow: str
    rule: ThrottleRule
    time_ms: int
    reset: bool = False
    order_id: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A rate and its division. ``slots``: bytes per second by slot number.

    For any other number of slots, each has an even share.
    """

    topics: str
    bytes_s: int
    slots: tuple[int, ...] = ()

    def share(self, slot: int, slots: int) -> float:
        """Bytes per second of ``slot``, one of ``slots``; at least 1."""
        even = len(self.slots) != slots
        return max(1.0, self.bytes_s / max(1, slots) if even else float(self.slots[slot]))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that apply now to the slots of ``run_id``. ``flow``: the run's channel."""

    flow: str
    run_id: str
    limits: tuple[SharedLimit, ...] = ()


def rule_row(rule: ThrottleRule) -> list[object]:
    """``rule`` as a JSON list."""
    return [rule.topics, rule.bytes_s, rule.between]


def read_rule(row: Sequence[Any]) -> ThrottleRule:
    """The rule of `rule_row`. Raises an error of `MALFORMED`."""
    topics, bytes_s, between = row[:3]
    if not 0 <= int(bytes_s) <= _BYTES_S_MAX or len(topics) > _REGEX_CHARS_MAX:
        raise ValueError("no rule")
    return ThrottleRule(str(topics), int(bytes_s), str(between))


def encode_throttle(order: ThrottleOrder) -> tuple[bytes, bytes]:
    """Key and value of ``order``, for the orders topic."""
    document: dict[str, object] = {
        "order": _KIND,
        "id": order.order_id,
        "time_ms": order.time_ms,
        "rule": rule_row(order.rule),
    }
    if order.reset:
        document["reset"] = True
    key = f"{order.flow}/throttle"
    return (f"{key}/{order.rule.topics}" if order.rule.topics else key).encode(), pack(document)


def decode_throttle(flow: str, key: bytes | None, value: bytes | None) -> ThrottleOrder | None:
    """The order about a limit of ``flow`` in a record; None if it holds none."""
    name, _, topics = text(key).removeprefix(f"{flow}/").partition("/")
    if name != _KIND or not text(key).startswith(f"{flow}/"):
        return None
    document = unpack(value)
    try:
        if document is None or document["order"] != _KIND:
            return None
        rule, order_id = read_rule(document["rule"]), str(document["id"])
        if rule.topics != topics or not 0 < len(order_id) <= _ID_CHARS_MAX:
            return None
        reset = bool(document.get("reset", False))
        return ThrottleOrder(flow, rule, int(document["time_ms"]), reset, order_id)
    except MALFORMED:
        return None


def encode_limits(limits: Limits, signer: Signer | None = None) -> tuple[bytes, bytes]:
    """Key and value of ``limits``, for partition ``COMMAND_PARTITION``; ``signer`` signs them."""
    key = f"{limits.flow}/limits"
    document: dict[str, object] = {
        "run_id": limits.run_id,
        "limits": [[one.topics, one.bytes_s, list(one.slots)] for one in limits.limits],
    }
    return key.encode(), pack(document if signer is None else signer.sign(key, document))


def is_limits_key(key: bytes | None) -> bool:
    """Whether ``key`` is that of `encode_limits`."""
    return text(key).endswith("/limits")


def decode_limits(
    flow: str, key: bytes | None, value: bytes | None, signer: Signer | None = None
) -> Limits | None:
    """The limits of ``flow`` in a record; None if it holds none, or none that ``signer`` signed."""
    if text(key) != f"{flow}/limits":
        return None
    document = unpack(value)
    try:
        if document is None or (signer is not None and not signer.verify(text(key), document)):
            return None
        found = tuple(
            SharedLimit(str(topics), int(bytes_s), tuple(int(one) for one in slots))
            for topics, bytes_s, slots in document["limits"]
        )
        bad = any(not 0 < one.bytes_s <= _BYTES_S_MAX for one in found)
        if bad or len(found) > _LIMITS_MAX:
            return None
        return Limits(flow, str(document["run_id"]), found)
    except (*MALFORMED, RecursionError):
        return None
