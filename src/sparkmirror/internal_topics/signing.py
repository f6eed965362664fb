"""HMAC signatures of documents in the control topic: only a holder of the key can write them.

A signature covers the record's key and the whole document, so neither can be copied to another flow
or run. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

__all__ = ["CODE_FIELD", "Signer"]

CODE_FIELD = "mac"
_PURPOSE = b"sparkmirror control topic 1\0"


class Signer:
    """Signs and verifies with a key that is derived from ``secret``, for this purpose only.

    ``secret``: at least 16 random bytes: a run's key for its assignments, or
    ``sparkmirror.control.secret`` for claims. Raises ValueError if it is empty.
    """

    def __init__(self, secret: str) -> None:
        if not secret:
            raise ValueError("the secret is empty")
        self._key = hmac.digest(secret.encode(), _PURPOSE, "sha256")

    def sign(self, key: str, document: Mapping[str, object]) -> dict[str, object]:
        """``document``, for the record key ``key``, with its signature in `CODE_FIELD`."""
        return {**document, CODE_FIELD: self._code(key, document)}

    def verify(self, key: str, document: Mapping[str, object]) -> bool:
        """Whether ``document``, read under ``key``, has the signature that `sign` gives it."""
        rest = dict(document)
        code = rest.pop(CODE_FIELD, None)
        if not isinstance(code, str) or not code.isascii():
            return False
        return hmac.compare_digest(code, self._code(key, rest))

    def _code(self, key: str, document: Mapping[str, object]) -> str:
        # Text, integers and lists survive a round trip through JSON, so the signature does too.
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        signed = f"{len(key)}:{key}{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()
