"""The assignment of a flow in the control topic: one record, or several pieces.

The codecs are pure, and safe against other records in the topic (see `commands`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkmirror.errors import Defect
from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition
from sparkmirror.settings import Member

__all__ = [
    "ASSIGNMENT_KEY",
    "ASSIGNMENT_PIECE_BYTES_MAX",
    "AssignmentCollector",
    "AssignmentDocument",
    "Orders",
    "Place",
    "SourcePartition",
    "encode_assignment",
    "member_row",
    "read_member",
]

# Below the broker's default max.message.bytes (1,048,588), with room for the batch header.
ASSIGNMENT_PIECE_BYTES_MAX = 900_000

ASSIGNMENT_KEY = re.compile(r"(.+)/assignment(?:/(\d{1,6}))?")


@dataclass(frozen=True, slots=True, order=True)
class SourcePartition:
    """One source partition and its remote topic; the remote partition has the same number.

    ``topic_id``: UUID of the source topic in its 36-character form; empty if the source broker
    gives none.
    """

    topic: str
    partition: int
    remote_topic: str
    topic_id: str = ""

    @property
    def source(self) -> TopicPartition:
        """The partition on the source cluster."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The partition on the target cluster."""
        return TopicPartition(self.remote_topic, self.partition)


Place = tuple[int, int]
"""A slot, and the version of the assignment that gave it a partition; 0: its plan did."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The moves of one partition between slots (`internal_topics.epochs.shares`).

    ``steps``: the new slots, each with the version of its order, oldest first. ``released``:
    whether the newest one has taken effect. All earlier ones have.
    """

    steps: tuple[Place, ...]
    released: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentDocument:
    """The assignment of one flow, for the planner.

    ``version`` grows within a run. ``ends``: frozen source end offsets (exclusive) of a ``--once``
    run; None otherwise. ``member``: in MirrorMaker 1 mode, the group member as which positions are
    committed from this version on. ``claim_term``: term of the run's claim
    (`internal_topics.flow_claims`). ``since``: the version that added a partition, for those that
    were added without a new epoch (`internal_topics.epochs.shares`); ``base``: the newest version
    for which an epoch had to begin, 0 if it is not known. ``moves``: of partitions that were moved
    to other slots since then.
    """

    flow: str
    run_id: str
    version: int
    partitions: tuple[SourcePartition, ...]
    ends: Mapping[TopicPartition, int] | None = None
    member: Member | None = None
    claim_term: int = 0
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    base: int = 0
    moves: Mapping[TopicPartition, Orders] = field(default_factory=dict)


def encode_assignment(
    document: AssignmentDocument,
    *,
    piece_bytes_max: int = ASSIGNMENT_PIECE_BYTES_MAX,
    signer: Signer | None = None,
) -> list[tuple[bytes, bytes]]:
    """Keys and values of ``document``, in order, for partition ``COMMAND_PARTITION``.

    One record if it fits into ``piece_bytes_max`` bytes, else several pieces. Every piece has run,
    version and number of pieces, so pieces of different versions are never mixed. ``signer`` signs
    each piece.
    """
    base = f"{document.flow}/assignment"
    ends = document.ends
    pieces = 1
    while True:
        size = -(-len(document.partitions) // pieces) or 1
        groups = [document.partitions[i * size : (i + 1) * size] for i in range(pieces)]
        keys = [base] if pieces == 1 else [f"{base}/{index}" for index in range(pieces)]
        values = []
        for index, (key, group) in enumerate(zip(keys, groups, strict=True)):
            piece = _assignment_piece(document, ends, group, index, pieces)
            values.append(pack(piece if signer is None else signer.sign(key, piece)))
        if max(map(len, values)) <= piece_bytes_max or size == 1:
            break
        pieces *= 2
    return [(key.encode(), value) for key, value in zip(keys, values, strict=True)]


def _assignment_piece(
    document: AssignmentDocument,
    ends: Mapping[TopicPartition, int] | None,
    group: Sequence[SourcePartition],
    index: int,
    pieces: int,
) -> dict[str, object]:
    piece_ends: dict[str, dict[str, int]] | None = None
    if ends is not None:
        piece_ends = {}
        for p in group:
            if p.source in ends:
                piece_ends.setdefault(p.topic, {})[str(p.partition)] = ends[p.source]
    piece: dict[str, object] = {
        "run_id": document.run_id,
        "version": document.version,
        "piece": index,
        "pieces": pieces,
        "partitions": [
            [p.topic, p.partition, p.remote_topic, p.topic_id, *_since(document, p)] for p in group
        ],
        "ends": piece_ends,
    }
    moves = {p.source: document.moves[p.source] for p in group if p.source in document.moves}
    if moves:
        piece["moves"] = [
            [*tp, orders.released, *map(list, orders.steps)] for tp, orders in moves.items()
        ]
    if document.base:
        piece["base"] = document.base
    if document.claim_term:
        piece["claim_term"] = document.claim_term
    if document.member is not None:
        piece["member"] = member_row(document.member)
    return piece


def _since(document: AssignmentDocument, partition: SourcePartition) -> list[int]:
    version = document.since.get(partition.source)
    return [] if version is None else [version]


def member_row(member: Member) -> list[object]:
    """``member`` as a JSON list."""
    return [member.member_id, member.generation, member.instance_id, member.cooperative]


def read_member(row: Sequence[Any] | None) -> Member | None:
    """The member of `member_row`; None for None. Raises an error of `MALFORMED`."""
    if row is None:
        return None
    member_id, generation, instance_id, cooperative = row[:4]
    return Member(str(member_id), int(generation), str(instance_id), bool(cooperative))


class AssignmentCollector:
    """Joins the pieces of one flow's assignments as they are read from the topic.

    Invariant: a document is returned only if all pieces of one ``(run_id, version)`` are there.
    With ``signer``, pieces without a valid signature are ignored; ``refused`` is the run id in the
    last such piece.
    """

    def __init__(self, flow: str, signer: Signer | None = None) -> None:
        self._flow = flow
        self._signer = signer
        self.refused = ""
        self._identity: tuple[str, int, int] | None = None
        self._pieces: dict[int, dict[str, Any]] = {}

    def feed(self, key: bytes | None, value: bytes | None) -> AssignmentDocument | None:
        """Add one record of the command partition; returns the document that it completes, or None.

        Other flows' records, commands and malformed records are ignored.
        """
        match = ASSIGNMENT_KEY.fullmatch(text(key))
        if match is None or match[1] != self._flow:
            return None
        piece = unpack(value)
        try:
            if piece is None:
                return None
            identity = (str(piece["run_id"]), int(piece["version"]), int(piece["pieces"]))
            index = int(piece["piece"])
            partitions, ends, since = _read_piece(piece)
            member = read_member(piece.get("member"))
            term = int(piece.get("claim_term", 0))
            base = int(piece.get("base", 0))
            moves = _read_moves(piece.get("moves", ()))
            if self._signer is not None and not self._signer.verify(text(key), piece):
                self.refused = identity[0]
                return None
        except (*MALFORMED, RecursionError):
            return None
        if not 0 <= index < identity[2]:
            return None
        if identity != self._identity:
            self._identity, self._pieces = identity, {}
        self._pieces[index] = {
            "partitions": partitions,
            "ends": ends,
            "member": member,
            "claim_term": term,
            "since": since,
            "base": base,
            "moves": moves,
        }
        return self._document() if len(self._pieces) == identity[2] else None

    def _document(self) -> AssignmentDocument:
        if self._identity is None:
            raise Defect("no run is named yet")
        ordered = [self._pieces[index] for index in sorted(self._pieces)]
        ends: dict[TopicPartition, int] | None = None
        if any(piece["ends"] is not None for piece in ordered):
            ends = {}
            for piece in ordered:
                ends.update(piece["ends"] or {})
        return AssignmentDocument(
            flow=self._flow,
            run_id=self._identity[0],
            version=self._identity[1],
            partitions=tuple(p for piece in ordered for p in piece["partitions"]),
            ends=ends,
            member=ordered[0]["member"],
            claim_term=ordered[0]["claim_term"],
            since={tp: at for piece in ordered for tp, at in piece["since"].items()},
            base=ordered[0]["base"],
            moves={tp: one for piece in ordered for tp, one in piece["moves"].items()},
        )


def _read_piece(
    piece: dict[str, Any],
) -> tuple[list[SourcePartition], dict[TopicPartition, int] | None, dict[TopicPartition, int]]:
    partitions, since = [], {}
    for topic, partition, remote, topic_id, *version in piece["partitions"]:
        partitions.append(SourcePartition(str(topic), int(partition), str(remote), str(topic_id)))
        if version:
            since[partitions[-1].source] = int(version[0])
    raw = piece.get("ends")
    if raw is None:
        return partitions, None, since
    ends = {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in raw.items()
        for partition, offset in offsets.items()
    }
    return partitions, ends, since


def _read_moves(rows: Sequence[Sequence[Any]]) -> dict[TopicPartition, Orders]:
    moves = {}
    for topic, partition, released, *steps in rows:
        places = tuple((int(slot), int(version)) for slot, version in steps)
        moves[TopicPartition(str(topic), int(partition))] = Orders(places, bool(released))
    return moves
