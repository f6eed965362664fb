"""Verifies downloaded jars against the SHA-256 hashes of the project's dependencies.

``jars.sha256`` has lines of hash and file name, as ``sha256sum`` writes them. If a requested jar is
listed, all its dependencies must be listed, too, so that a repository cannot add one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from sparkmirror.errors import MachineError

__all__ = ["pins_digest", "verify_jars"]

log = logging.getLogger(__name__)

_FILE = "jars.sha256"


def verify_jars(wanted: Iterable[str], jars: Sequence[Path]) -> None:
    """Verify ``jars`` against the list; ``wanted``: names of the jars that were requested.

    A listed jar with another hash is deleted, so that the next call downloads it again. Versions
    that are not listed are used with a warning. Raises MachineError.
    """
    pins = _pins()
    unlisted = [name for name in wanted if name not in pins]
    strangers = [jar.name for jar in jars if jar.name not in pins]
    for jar in jars:
        known = pins.get(jar.name)
        if known is None:
            continue
        found = _sha256(jar)
        if found not in known:
            jar.unlink(missing_ok=True)
            raise MachineError(
                f"{jar.name} is not the file that sparkmirror was tested with: its SHA-256 is "
                f"{found}, and it should be {' or '.join(sorted(known))}. It was deleted.",
                where=str(jar),
                do="Try again. If it happens again, the repository or a proxy serves another file: "
                "do not use it, and find out who changed it.",
            )
    if not strangers:
        return
    named = ", ".join(sorted(strangers)[:5]) + (" …" if len(strangers) > 5 else "")
    if not unlisted:
        raise MachineError(
            f"the download contains {len(strangers)} jars that do not belong to it: {named}.",
            where="Maven repository",
            do="Use another repository: this one has other dependencies for the same version.",
        )
    log.warning(
        "no hash is known of %s: %d jars are used without verification (%s)",
        *(", ".join(unlisted), len(strangers), named),
    )


@cache
def pins_digest() -> str:
    """A digest of the list."""
    return hashlib.sha256(_text().encode()).hexdigest()


def _text() -> str:
    return (resources.files(__package__) / _FILE).read_text("utf-8")


@cache
def _pins() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in _text().splitlines():
        digest, _, name = line.partition("  ")
        found.setdefault(name, set()).add(digest)
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
