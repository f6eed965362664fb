"""Who runs an exactly-once flow: claims in the control topic, and the ids that they fence.

A claim (key ``<flow>/claim`` in partition 0 of the control topic) says: from here on the run
``run_id`` writes this flow, and nobody else. The topic's order decides between two of them: the
newest wins. ``slots`` is how many of the flow's transactional ids (`transactional_id`) may ever
have been used, so that a run with fewer slots fences those of an earlier one, too. It is read as
at most `EXACT_SLOTS_MAX`, which no flow may exceed: a stranger's claim must not hold a start up.

Pure codecs, but for `fence_slots`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sparkmirror.model import EXACT_SLOTS_MAX, FlowSettings
from sparkmirror.wire.produce_queue import Identity
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.transactions import Transactions

__all__ = [
    "Claim",
    "decode_claim",
    "encode_claim",
    "fence_slots",
    "transactional_id",
    "transactional_id_prefix",
]

_SUFFIX = "/claim"


@dataclass(frozen=True, slots=True)
class Claim:
    """``run_id`` writes ``flow`` from here on; ``host`` is where its driver runs."""

    flow: str
    run_id: str
    slots: int
    host: str = ""


def encode_claim(claim: Claim) -> tuple[bytes, bytes]:
    """Key and value of ``claim``, for the command partition."""
    document = {"run_id": claim.run_id, "slots": claim.slots, "host": claim.host}
    return f"{claim.flow}{_SUFFIX}".encode(), json.dumps(document, separators=(",", ":")).encode()


def decode_claim(key: bytes | None, value: bytes | None) -> Claim | None:
    """The claim in a record, None when it holds none."""
    try:
        name = (key or b"").decode()
        if not name.endswith(_SUFFIX) or not value:
            return None
        document = json.loads(value)
        return Claim(
            name.removesuffix(_SUFFIX),
            str(document["run_id"]),
            min(max(0, int(document["slots"])), EXACT_SLOTS_MAX),
            str(document.get("host", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def transactional_id(flow: FlowSettings, slot: int) -> str:
    """The transactional id of one slot; one ACL for the prefix covers the group and all ids."""
    return f"{transactional_id_prefix(flow)}{slot}"


def transactional_id_prefix(flow: FlowSettings) -> str:
    """What all transactional ids of the flow begin with."""
    return f"{flow.position_group}-"


def fence_slots(
    flow: FlowSettings, slots: int, *, patience_s: float = float("inf")
) -> list[Identity]:
    """Abort what any earlier writer of the flow's slots has open, and refuse the rest of it.

    Returns the slots' identities from here on. Raises `Denied`, `TransactionError`, `Unreachable`.
    """
    routes = Routes(flow.target)
    identities: list[Identity] = []
    try:
        for slot in range(slots):
            transactions = Transactions(
                routes,
                transactional_id(flow, slot),
                timeout_ms=flow.transaction_timeout_ms,
                patience_s=patience_s,
            )
            try:
                identities.append(transactions.fence())
            finally:
                transactions.close()
    finally:
        routes.close()
    return identities
