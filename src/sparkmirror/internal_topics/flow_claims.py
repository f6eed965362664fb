"""Who mirrors a flow: claims in the control topic, those who stand by, and the ids that are fenced.

A claim (key ``<flow>/claim`` in partition 0 of the control topic) says: from here on the run
``run_id`` writes this flow, and nobody else. The topic's order decides between two of them: the
newest wins. ``slots`` is how many of the flow's transactional ids (`transactional_id`) may ever
have been used, so that a run with fewer slots fences those of an earlier one, too. It is read as
at most `EXACT_SLOTS_MAX`, which no flow may exceed: a stranger's claim must not hold a start up.
A process that waits for its turn says so in a record of its own (`Standby`).

With ``sparkmirror.control.secret`` a claim is signed (`internal_topics.signing`), and who has the
secret believes no other. Its ``term`` grows from run to run, so that a claim of an earlier run,
written once more, takes nothing back.

Pure codecs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sparkmirror.errors import Fenced
from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.signing import CODE_FIELD, Signer
from sparkmirror.model import EXACT_SLOTS_MAX, FlowSettings

__all__ = [
    "Claim",
    "Standby",
    "claim_signer",
    "decode_claim",
    "decode_standby",
    "encode_claim",
    "encode_standby",
    "is_believed",
    "is_signed",
    "standby_key",
    "taken_over",
    "transactional_id",
    "transactional_id_prefix",
]

_SUFFIX = "/claim"
_STANDBY_KEY = re.compile(r"(.+)/standby#(.+)")
_SINCE_STANDBYS = ("place", "file", "content", "session_ms", "time_ms")
_SESSION_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True)
class Claim:
    """``run_id`` writes ``flow`` from here on; ``host``: that of its driver (`own_host`).

    ``term``: greater than those of all earlier claims; 0 without a secret. ``place``: the driver's
    process (`control.coordination.place`), ``file``: its configuration file, ``content``: what the
    file says of the flow, as a digest. ``session_ms``: after how long without a report it counts as
    gone. ``time_ms``: when it was made, by its own clock. Earlier releases give none of these.
    """

    flow: str
    run_id: str
    slots: int
    host: str = ""
    term: int = 0
    place: str = ""
    file: str = ""
    content: str = ""
    session_ms: int = 0
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Standby:
    """A process that would take ``flow`` over; ``run_id``, ``host`` and ``file`` are its own."""

    flow: str
    run_id: str
    host: str
    version: str
    file: str
    time_ms: int


def encode_standby(standby: Standby) -> tuple[bytes, bytes]:
    """Key and value of ``standby``, for the progress partition."""
    document = {
        "host": standby.host,
        "version": standby.version,
        "file": standby.file,
        "time_ms": standby.time_ms,
    }
    return standby_key(standby.flow, standby.run_id), pack(document)


def standby_key(flow: str, run_id: str) -> bytes:
    """The key of one process's word that it stands by; without a value it no longer does."""
    return f"{flow}/standby#{run_id}".encode()


def decode_standby(key: bytes | None, value: bytes | None) -> Standby | None:
    """What `encode_standby` made; None for any other record."""
    match = _STANDBY_KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        return Standby(
            match[1],
            match[2],
            str(document["host"]),
            str(document["version"]),
            str(document["file"]),
            int(document["time_ms"]),
        )
    except MALFORMED:
        return None


def taken_over(flow: FlowSettings, claim: Claim, run_id: str) -> Fenced:
    """Why the run ``run_id`` ends: ``claim`` is a newer one than its own."""
    file = f", file {claim.file}" if claim.file else ""
    again = (
        "nothing arrives twice"
        if flow.exactly_once
        else "what it wrote in its last second may arrive again"
    )
    return Fenced(
        f"another sparkmirror (run {claim.run_id}, host {claim.host or 'unknown'}{file}) has taken "
        f"this flow over. This one (run {run_id}) has ended; {again}.",
        where=f"flow {flow.name}",
        do="Start it again to have it stand by; --take-over would take the flow back.",
    )


def claim_signer(flow: FlowSettings) -> Signer | None:
    """Signs and verifies the claims of ``flow``; None without a secret."""
    return Signer(flow.control_secret) if flow.control_secret else None


def encode_claim(claim: Claim, signer: Signer | None = None) -> tuple[bytes, bytes]:
    """Key and value of ``claim``, for the command partition; with ``signer``, signed."""
    key = f"{claim.flow}{_SUFFIX}"
    document: dict[str, object] = {
        "run_id": claim.run_id,
        "slots": claim.slots,
        "host": claim.host,
    }
    for name in ("term", *_SINCE_STANDBYS):
        if getattr(claim, name):
            document[name] = getattr(claim, name)
    if signer is not None:
        document = signer.sign(key, document)
    return key.encode(), json.dumps(document, separators=(",", ":")).encode()


def is_signed(value: bytes | None) -> bool:
    """Whether the claim in ``value`` carries a code, be it a right one or not."""
    document = unpack(value)
    return document is not None and isinstance(document.get(CODE_FIELD), str)


def is_believed(key: bytes | None, value: bytes | None, signer: Signer | None) -> bool:
    """Whether the claim in a record counts: without a secret all do, else those it signed."""
    if signer is None:
        return True
    document = unpack(value)
    try:
        return document is not None and signer.verify(text(key), document)
    except (ValueError, RecursionError):
        return False


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
            max(0, int(document.get("term", 0))),
            str(document.get("place", "")),
            str(document.get("file", "")),
            str(document.get("content", "")),
            min(max(0, int(document.get("session_ms", 0))), _SESSION_MS_MAX),
            max(0, int(document.get("time_ms", 0))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def transactional_id(flow: FlowSettings, slot: int) -> str:
    """The transactional id of one slot; one ACL for the prefix covers the group and all ids."""
    return f"{transactional_id_prefix(flow)}{slot}"


def transactional_id_prefix(flow: FlowSettings) -> str:
    """What all transactional ids of the flow begin with."""
    return f"{flow.position_group}-"
