"""HMACs of documents in the control topic: who has the key wrote them, and nobody changed them.

Pure. The code covers the record's key and the whole document, so that neither can be moved to
another flow or run.
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
    """Signs and verifies with one key, of which other secrets may be made, too.

    ``secret``: at least 16 bytes that nobody can guess: a run's key for its assignments,
    ``sparkmirror.control.secret`` for claims. Raises ValueError when it is empty.
    """

    def __init__(self, secret: str) -> None:
        if not secret:
            raise ValueError("an empty key is everybody's")
        self._key = hmac.digest(secret.encode(), _PURPOSE, "sha256")

    def sign(self, key: str, document: Mapping[str, object]) -> dict[str, object]:
        """``document`` for the record ``key``, with its code."""
        return {**document, CODE_FIELD: self._code(key, document)}

    def verify(self, key: str, document: Mapping[str, object]) -> bool:
        """Whether ``document``, as it was read under ``key``, has the code that `sign` gave it."""
        rest = dict(document)
        code = rest.pop(CODE_FIELD, None)
        if not isinstance(code, str) or not code.isascii():
            return False
        return hmac.compare_digest(code, self._code(key, rest))

    def _code(self, key: str, document: Mapping[str, object]) -> str:
        # As read and written again: JSON keeps text, whole numbers and lists as they were.
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        signed = f"{len(key)}:{key}{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()
