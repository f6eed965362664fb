"""As whom a client's requests are authorized, as far as its settings alone tell."""

from __future__ import annotations

from sparkmirror.config.clients.sasl import sasl_settings
from sparkmirror.model import ClusterClient

__all__ = ["ANONYMOUS", "principal_of"]

ANONYMOUS = "User:ANONYMOUS"
_NAMED_LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def principal_of(client: ClusterClient) -> str | None:
    """``User:NAME``; None where the broker decides: certificates, tickets and tokens.

    Raises ConfigError for a login that cannot work.
    """
    if client.security_protocol == "PLAINTEXT":
        return ANONYMOUS
    if client.security_protocol == "SSL":
        certified = any(key.startswith("ssl.keystore.") for key in client.properties)
        return None if certified else ANONYMOUS
    login = sasl_settings(client.properties, where=f"cluster {client.alias}")
    if login.mechanism not in _NAMED_LOGINS or login.token_auth:
        return None
    return f"User:{login.username}"
