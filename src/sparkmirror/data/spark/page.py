"""Spark's page (its web UI) for whoever runs the mirror: on the loopback address, with a token.

Spark has a servlet filter of its own that checks a token in a request's header. The key of the
token is made for the run. Requests without it get an error, whichever user of the machine sends
them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkmirror.data.spark.ports import is_local
from sparkmirror.errors import ConfigError

__all__ = ["SparkPage", "check_page"]

_FILTER = "org.apache.spark.ui.JWSFilter"
_KEY_BYTES = 32  # the least for HMAC-SHA-256
_FILE = "spark-page.header"
_OURS = ("spark.ui.enabled", "spark.ui.filters")


def check_page(master: str, given: Mapping[str, str]) -> None:
    """Raise ConfigError if ``--ui`` does not go with the master or the user's settings."""
    if not is_local(master):
        raise ConfigError(
            f"Spark's page would be on the network of {master}.",
            where="--ui",
            do="Leave --ui out. With --conf spark.ui.enabled=true Spark's own settings protect it.",
        )
    for key in _OURS:
        if key in given:
            raise ConfigError(
                f"--conf {key} and --ui decide on the same page.",
                where="--ui",
                do=f"Leave out --ui, or --conf {key}.",
            )


@dataclass(frozen=True)
class SparkPage:
    """The key of one run's page."""

    _key: bytes = field(default_factory=lambda: secrets.token_bytes(_KEY_BYTES), repr=False)

    def settings(self) -> dict[str, str]:
        """Spark's settings for it. The key is not for command lines (`ports.withheld`)."""
        return {
            "spark.ui.enabled": "true",
            "spark.ui.killEnabled": "false",
            "spark.ui.filters": _FILTER,
            f"spark.{_FILTER}.param.secretKey": _encoded(self._key),
        }

    def environment(self) -> dict[str, str]:
        """Variables for Spark's JVM: the page is on this address."""
        return {"SPARK_LOCAL_IP": "127.0.0.1"}

    def token(self) -> str:
        """A JSON Web Token (RFC 7519) with the key's signature."""
        head, claims = (
            _encoded(json.dumps(part, separators=(",", ":")).encode())
            for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "sparkmirror"})
        )
        signed = f"{head}.{claims}"
        return f"{signed}.{_encoded(hmac.digest(self._key, signed.encode(), hashlib.sha256))}"

    def write_header(self, directory: Path) -> Path:
        """Write the header that requests need into a file that only this user can read."""
        path = directory / _FILE
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(f"Authorization: Bearer {self.token()}\n", encoding="ascii")
        return path


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
