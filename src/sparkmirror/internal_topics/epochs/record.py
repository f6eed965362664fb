"""The record of an exactly-once flow's newest epoch, under ``<flow>/epoch``. Pure codec.

The planner writes one for each epoch that it plans, before it fences the slots of earlier ones. A
slot mirrors only while the newest one of its run is that of its own plan
(`data.coordination.fencing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.signing import Signer

__all__ = ["EpochRecord", "decode_epoch", "encode_epoch", "is_epoch_key"]

_SUFFIX = "/epoch"


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """A plan of run ``run_id``. ``flow``: the run's channel.

    ``number`` grows within the run. Spark's number of the epoch would not: a query that is started
    again plans its last epoch once more. ``token``: no other plan has it. So two planners that
    give the same number do not confuse their slots.
    """

    flow: str
    run_id: str
    number: int
    token: str

    def newest(self, known: EpochRecord | None) -> EpochRecord:
        """The newer one of this record and ``known``, which was read before it."""
        return self if known is None or self.number >= known.number else known


def encode_epoch(record: EpochRecord, signer: Signer | None = None) -> tuple[bytes, bytes]:
    """Key and value of ``record``, for partition ``COMMAND_PARTITION``; ``signer`` signs it."""
    key = f"{record.flow}{_SUFFIX}"
    document: dict[str, object] = {
        "run_id": record.run_id,
        "number": record.number,
        "token": record.token,
    }
    return key.encode(), pack(document if signer is None else signer.sign(key, document))


def is_epoch_key(key: bytes | None) -> bool:
    """Whether a record with ``key`` is that of an epoch, of any flow."""
    return text(key).endswith(_SUFFIX)


def decode_epoch(
    flow: str, key: bytes | None, value: bytes | None, signer: Signer | None = None
) -> EpochRecord | None:
    """The epoch of ``flow`` in a record; None if it holds none, or none that ``signer`` signed."""
    name = f"{flow}{_SUFFIX}"
    if text(key) != name:
        return None
    document = unpack(value)
    try:
        if document is None or (signer is not None and not signer.verify(name, document)):
            return None
        number = int(document["number"])
        return EpochRecord(flow, str(document["run_id"]), number, str(document["token"]))
    except (*MALFORMED, RecursionError):
        return None
