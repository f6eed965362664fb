"""What a slot has released of the newest moves, under ``<flow>/<slot>/gone``. Pure codec.

The slot's sink writes it, the driver reads it (`epochs.shares`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition

__all__ = ["Release", "decode_release", "encode_release"]

_KEY = re.compile(r"(.+)/(\d{1,9})/gone")


@dataclass(frozen=True, slots=True)
class Release:
    """Partitions that a slot has given up. ``flow``: the run's channel.

    ``epoch``: Spark's number of the slot's epoch. ``version``: that of the order. Everything that
    the slot has written of ``partitions`` is committed, and it writes nothing more of them.
    """

    flow: str
    run_id: str
    slot: int
    epoch: int
    version: int
    partitions: tuple[TopicPartition, ...]


def encode_release(release: Release, signer: Signer | None = None) -> tuple[bytes, bytes]:
    """Key and value of ``release``, for partition ``PROGRESS_PARTITION``; ``signer`` signs it."""
    key = f"{release.flow}/{release.slot}/gone"
    topics: dict[str, list[int]] = {}
    for tp in release.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    document: Mapping[str, object] = {
        "run_id": release.run_id,
        "epoch": release.epoch,
        "version": release.version,
        "partitions": topics,
    }
    return key.encode(), pack(document if signer is None else signer.sign(key, document))


def decode_release(
    key: bytes | None, value: bytes | None, signer: Signer | None = None
) -> Release | None:
    """The release in a record; None if it holds none, or none that ``signer`` signed."""
    match = _KEY.fullmatch(text(key))
    document = None if match is None else unpack(value)
    if match is None or document is None:
        return None
    try:
        if signer is not None and not signer.verify(text(key), document):
            return None
        return Release(
            match[1],
            str(document["run_id"]),
            int(match[2]),
            int(document["epoch"]),
            int(document["version"]),
            tuple(
                TopicPartition(str(topic), int(number))
                for topic, numbers in document["partitions"].items()
                for number in numbers
            ),
        )
    except (*MALFORMED, RecursionError):
        return None
