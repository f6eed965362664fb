"""Keep secrets out of everything that is printed."""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.config.table.settings import is_secret

__all__ = ["HIDDEN", "ClientProperties", "is_secret", "redact", "redact_all"]

# Java's own marker for values of type PASSWORD.
HIDDEN = "[hidden]"


def redact(key: str, value: str) -> str:
    """``value``, or ``[hidden]`` if ``key`` (scoped or bare) is one whose value is a secret."""
    return HIDDEN if is_secret(key) else value


def redact_all(properties: Mapping[str, str]) -> dict[str, str]:
    """A printable copy of ``properties``."""
    return {key: redact(key, value) for key, value in properties.items()}


class ClientProperties(dict[str, str]):
    """Java client properties whose ``repr`` shows no secret; otherwise a plain dictionary."""

    def __repr__(self) -> str:
        return repr(redact_all(self))
