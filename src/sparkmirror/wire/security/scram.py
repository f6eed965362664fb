"""SCRAM logins: kafka-python's exchange (RFC 5802), made stricter.

Loading it also loads kafka-python's own network client, so only who logs in with SCRAM does.
"""

from __future__ import annotations

import base64
import re

from kafka.net.sasl.scram import SaslMechanismScram, ScramClient

from sparkmirror.config.clients.sasl import SaslSettings
from sparkmirror.wire.security.mechanisms import ChallengeRefused

__all__ = ["Scram"]

# Java and RFC 7677 require the minimum; a million take about a second of CPU time.
_ITERATIONS_MIN, _ITERATIONS_MAX = 4_096, 1_000_000
_SALT_BYTES_MIN, _SALT_BYTES_MAX = 8, 1_024  # Kafka's own salts have 26 or so
_NEW_CREDENTIALS = (
    "Give the user new credentials on its cluster (kafka-configs.sh --alter --add-config "
    "'SCRAM-SHA-512=[iterations=4096,password=…]'), and check that the address in "
    "bootstrap.servers is that of your broker."
)


class Scram(SaslMechanismScram):  # type: ignore[misc]
    """Adds what kafka-python lacks: escaped names (RFC 5802) and delegation tokens (KIP-48)."""

    def __init__(self, settings: SaslSettings) -> None:
        self.username = settings.username
        self.mechanism = settings.mechanism
        name = settings.username.replace("=", "=3D").replace(",", "=2C")
        client = _TokenScramClient if settings.token_auth else _StrictScramClient
        self._scram_client = client(name, settings.password, settings.mechanism)
        self._state = 0


class _StrictScramClient(ScramClient):  # type: ignore[misc]
    """Refuses challenges that are weaker than Java and RFC 7677 require.

    Whoever gets the client's proof can guess passwords with it; fewer iterations make that faster.
    A challenge whose nonce adds nothing to ours may be a replay.
    """

    def process_server_first_message(self, server_first_message: bytes) -> None:
        said = dict(part.split("=", 1) for part in server_first_message.decode().split(","))
        if "m" in said:
            raise ValueError("an unknown extension")
        nonce, ours = said["r"], self.nonce.decode()
        if not nonce.startswith(ours) or nonce == ours:
            raise ChallengeRefused(
                "its nonce does not extend ours: it may be a replay",
                "Check that the address is that of your broker.",
            )
        salt = base64.b64decode(said["s"], validate=True)
        if not _SALT_BYTES_MIN <= len(salt) <= _SALT_BYTES_MAX:
            raise ChallengeRefused(
                f"a salt of {len(salt)} bytes; {_SALT_BYTES_MIN} to {_SALT_BYTES_MAX} are accepted",
                _NEW_CREDENTIALS,
            )
        digits = said["i"]
        number = int(digits) if re.fullmatch(r"[0-9]{1,9}", digits) else -1
        if not _ITERATIONS_MIN <= number <= _ITERATIONS_MAX:
            raise ChallengeRefused(
                f"{number if number >= 0 else 'no number of'} iterations; "
                f"{_ITERATIONS_MIN:,} to {_ITERATIONS_MAX:,} are accepted",
                _NEW_CREDENTIALS,
            )
        super().process_server_first_message(server_first_message)


class _TokenScramClient(_StrictScramClient):
    def first_message(self) -> bytes:
        first: bytes = super().first_message()
        self.auth_message += b",tokenauth=true"
        return first + b",tokenauth=true"
