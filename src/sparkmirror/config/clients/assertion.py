"""The signed assertion that OAUTHBEARER's JWT bearer grant exchanges for a token (RFC 7523)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.config.table.setting import java_int
from sparkmirror.errors import ConfigError

__all__ = ["PREFIX", "RETRIEVER", "Assertion", "assertion_of"]

PREFIX = "sasl.oauthbearer.assertion."
RETRIEVER = "JwtBearerJwtRetriever"
"""Java's class that requests tokens with an assertion, without its package."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """Where the assertion comes from.

    ``file``: a file with a finished assertion. Otherwise it is built from the JSON in ``template``
    (objects ``header`` and ``payload``), from ``claims`` and the current time, and signed with the
    PEM key in ``key_file``. ``expires_s``: seconds until it expires; ``before_s``: seconds before
    now from which it is valid; ``numbered``: with a ``jti`` claim.
    """

    file: str = ""
    key_file: str = ""
    passphrase: str = field(default="", repr=False)
    algorithm: str = "RS256"
    template: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)
    expires_s: int = 300
    before_s: int = 60
    numbered: bool = False


def assertion_of(properties: Mapping[str, str], *, where: str) -> Assertion:
    """The settings ``sasl.oauthbearer.assertion.*``. Raises ConfigError if they are incomplete."""

    def text(name: str) -> str:
        return properties.get(PREFIX + name, "").strip()

    found = Assertion(
        file=text("file"),
        key_file=text("private.key.file"),
        passphrase=text("private.key.passphrase"),
        algorithm=text("algorithm").upper() or "RS256",
        template=text("template.file"),
        claims={name: text(f"claim.{name}") for name in ("aud", "iss", "sub")
                if text(f"claim.{name}")},
        expires_s=java_int(text("claim.exp.seconds") or "300"),
        before_s=java_int(text("claim.nbf.seconds") or "60"),
        numbered=text("claim.jti.include").lower() == "true",
    )  # fmt: skip
    if not (found.file or found.key_file):
        raise ConfigError(
            f"{RETRIEVER} has neither an assertion nor a key to sign one.",
            where=where,
            do=f"Set {PREFIX}private.key.file to a PEM key, with {PREFIX}claim.iss, claim.sub and "
            f"claim.aud as the identity provider requires them, or {PREFIX}file to a finished "
            "assertion.",
        )
    return found
