"""Records of flow ownership in the control topic: claims and standbys; and transactional ids.

A claim (key ``<flow>/claim`` in partition 0 of the control topic) means: from here on only the run
``run_id`` writes this flow. The newest claim in the topic's order wins. ``slots`` is the number of
the flow's transactional ids (`transactional_id`) that may ever have been used, so that a run with
fewer slots also fences the ids of an earlier run. A reader limits it to `EXACT_SLOTS_MAX`, the
maximum for any flow: a forged claim must not delay a start. A standby process writes a record of
its own (`Standby`).

With ``sparkmirror.control.secret`` claims are signed (`internal_topics.signing`), and a process
with the secret ignores claims without a valid signature. The ``term`` grows from run to run, so a
replayed claim of an earlier run has no effect.

The codecs are pure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sparkmirror.errors import Fenced
from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.signing import CODE_FIELD, Signer
from sparkmirror.settings import EXACT_SLOTS_MAX, FlowSettings

__all__ = [
    "Claim",
    "Standby",
    "claim_key",
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
    """``run_id`` writes ``flow`` from here on. ``host``: `own_host` of its driver.

    ``term``: greater than the term of every earlier claim; 0 without a secret. ``place``: the
    driver's process (`control.coordination.place`). ``file``: its configuration file. ``content``:
    digest of what the file says about the flow. ``session_ms``: time without a report after which
    others may take the flow. ``time_ms``: creation time, by the driver's clock. Earlier releases
    give none of these.
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
    """A standby process for ``flow``; all fields are its own."""

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
    """Key of the record of one standby; a tombstone ends the standby."""
    return f"{flow}/standby#{run_id}".encode()


def decode_standby(key: bytes | None, value: bytes | None) -> Standby | None:
    """The standby in a record; None for any other record."""
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
    """The error with which run ``run_id`` ends after the newer ``claim`` of another run."""
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
        do="Start it again to have it stand by; sparkmirror run --take-over takes the flow back.",
    )


def claim_key(flow: str) -> bytes:
    """Key of the claims of ``flow``; the topic is compacted, so that only the last one stays."""
    return f"{flow}{_SUFFIX}".encode()


def claim_signer(flow: FlowSettings) -> Signer | None:
    """The signer for claims of ``flow``; None without a secret."""
    return Signer(flow.control_secret) if flow.control_secret else None


def encode_claim(claim: Claim, signer: Signer | None = None) -> tuple[bytes, bytes]:
    """Key and value of ``claim``, for the command partition; signed if there is a ``signer``."""
    key = claim_key(claim.flow).decode()
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
    """Whether the claim in ``value`` has a signature, valid or not."""
    document = unpack(value)
    return document is not None and isinstance(document.get(CODE_FIELD), str)


def is_believed(key: bytes | None, value: bytes | None, signer: Signer | None) -> bool:
    """Whether the claim in a record is valid: signed by ``signer``, or any claim without one."""
    if signer is None:
        return True
    document = unpack(value)
    try:
        return document is not None and signer.verify(text(key), document)
    except (ValueError, RecursionError):
        return False


def decode_claim(key: bytes | None, value: bytes | None) -> Claim | None:
    """The claim in a record; None if it holds none."""
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
    """The transactional id of one slot: the position group, ``-`` and the slot number."""
    return f"{transactional_id_prefix(flow)}{slot}"


def transactional_id_prefix(flow: FlowSettings) -> str:
    """The common prefix of the flow's transactional ids; one PREFIXED ACL covers all of them."""
    return f"{flow.position_group}-"
