"""Converts ``authentication.type: oauth`` of Strimzi's resources to Kafka's own settings. Pure.

Strimzi's pods log in with Strimzi's own library. A field that the login needs and that Kafka has no
setting for is an error; other fields without a counterpart are noted as left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sparkmirror.config.clients.jaas import LoginModule, format_module
from sparkmirror.config.files.documents import Node

OAUTH = "oauth"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_PREFIX = "sasl.oauthbearer."
_READY = ("accessToken", "accessTokenLocation")
_EXTENSION = "extension_"
_DIGITS_MAX = 18
# Without these the token endpoint would refuse the request or return another token.
_REFUSED = {
    "refreshToken": "is a refresh token, but Kafka's settings request tokens without one",
    "passwordSecret": "is a user's password for the token endpoint, but Kafka's settings send a "
    "client's own credentials",
    "clientAssertion": "authenticates the client, but Kafka's settings send an assertion instead "
    "of a client (sasl.oauthbearer.jwt.retriever.class=JwtBearerJwtRetriever), which not every "
    "token endpoint accepts",
    "audience": "is sent to the token endpoint by Strimzi, but Kafka's settings send none",
}
_REFUSED |= {"clientAssertionLocation": _REFUSED["clientAssertion"]}
_NAMED = {
    "enableMetrics": "it is for Strimzi's pods",
    "includeAcceptHeader": "Accept: application/json is always sent",
    "accessTokenIsJwt": "a token is used as it is",
    "maxTokenExpirySeconds": "sasl.login.refresh.* determine when a token is refreshed",
    "httpRetries": "failed requests for a token are retried for sasl.login.retry.backoff.max.ms",
    "clientAssertionType": "it belongs to a client assertion",
    "username": "it belongs to passwordSecret",
}
_CREDENTIALS = (
    "clientId", "clientSecret", "tokenEndpointUri", "scope", "tlsTrustedCertificates",
    "disableTlsHostnameVerification", "connectTimeoutSeconds", "readTimeoutSeconds",
    "httpRetryPauseMs",
)  # fmt: skip
_ASKS_NOBODY = "a finished token is used, so no token endpoint is contacted"


@dataclass(slots=True)
class OAuthLines:
    """The converted login.

    ``lines``: (key, node of its value, value); ``left_out``: (node without a counterpart, reason).
    No value is a secret; values refer to the Secrets' files.
    """

    lines: list[tuple[str, Node, str]] = field(default_factory=list)
    left_out: list[tuple[Node, str]] = field(default_factory=list)


def oauth_lines(login: Node, reference: Callable[[Node, Node], str], secrets: Path) -> OAuthLines:
    """The settings of a cluster for a ``login`` of type oauth.

    ``reference``: returns the placeholder for (Secret, key). ``secrets``: the directory where
    Secrets are mounted. Raises ConfigError with file and line.
    """
    found = OAuthLines()
    kind = login.need("type")
    found.lines += [
        ("sasl.mechanism", kind, "OAUTHBEARER"),
        ("sasl.login.callback.handler.class", kind, f"{_PACKAGE}.OAuthBearerLoginCallbackHandler"),
    ]
    options: dict[str, str] = {}
    if any(login.get(name) for name in _READY):
        _ready_token(login, found, secrets)
        known = {*_READY}
        found.left_out += [
            (node, _ASKS_NOBODY) for name in (*_CREDENTIALS, *_REFUSED) if (node := login.get(name))
        ]
    else:
        _client_credentials(login, found, reference)
        options = _endpoint_tls(login, secrets)
        known = set()
    known |= {"type", "saslExtensions", *_CREDENTIALS, *_REFUSED}
    found.left_out += [
        (node, _NAMED.get(name, "not a field of an oauth login"))
        for name, node in login.table().items()
        if name not in known
    ]
    extensions = login.get("saslExtensions")
    for name, node in (extensions.table() if extensions else {}).items():
        options[f"{_EXTENSION}{name}"] = node.text()
    module = format_module(LoginModule(f"{_PACKAGE}.OAuthBearerLoginModule", "required", options))
    found.lines.append(("sasl.jaas.config", kind, module))
    return found


def _ready_token(login: Node, found: OAuthLines, secrets: Path) -> None:
    """Use a token from a file that another program writes; it is read at every login."""
    if (token := login.get("accessToken")) is not None:
        if location := login.get("accessTokenLocation"):
            location.wrong("is set together with accessToken; keep one of them")
        path = secrets / token.need("secretName").text() / token.need("key").text()
    else:
        token = login.need("accessTokenLocation")
        path = Path(token.text())
        if not path.is_absolute():
            token.wrong("is not an absolute path")
    found.lines.append((f"{_PREFIX}token.endpoint.url", token, path.absolute().as_uri()))


def _client_credentials(
    login: Node, found: OAuthLines, reference: Callable[[Node, Node], str]
) -> None:
    for name, reason in _REFUSED.items():
        if node := login.get(name):
            node.wrong(
                f"{reason}. Remove authentication from the file and write the sasl.* lines by "
                "hand (docs/security.md)"
            )
    url, client, secret = (
        login.need(name) for name in ("tokenEndpointUri", "clientId", "clientSecret")
    )
    if not url.text().startswith(("http://", "https://")):
        url.wrong("is not an http(s) address")
    credentials = f"{_PREFIX}client.credentials.client."
    placeholder = reference(secret.need("secretName"), secret.need("key"))
    found.lines += [
        (f"{_PREFIX}token.endpoint.url", url, url.text()),
        (f"{credentials}id", client, client.text()),
        (f"{credentials}secret", secret, placeholder),
    ]
    if scope := login.get("scope"):
        found.lines.append((f"{_PREFIX}scope", scope, scope.text()))
    for name, key, unit in (
        ("connectTimeoutSeconds", "sasl.login.connect.timeout.ms", 1_000),
        ("readTimeoutSeconds", "sasl.login.read.timeout.ms", 1_000),
        ("httpRetryPauseMs", "sasl.login.retry.backoff.ms", 1),
    ):
        if node := login.get(name):
            found.lines.append((key, node, str(_whole(node) * unit)))


def _whole(node: Node) -> int:
    text = node.text()
    if not (text.isascii() and text.isdigit()):
        node.wrong("is not a whole number")
    if len(text) > _DIGITS_MAX:
        node.wrong("is too large a number")
    return int(text)


def _endpoint_tls(login: Node, secrets: Path) -> dict[str, str]:
    """``ssl.*`` options of the JAAS entry, which apply only to the token endpoint."""
    options: dict[str, str] = {}
    certificates = login.get("tlsTrustedCertificates")
    found = certificates.items() if certificates else []
    if certificates and len(found) > 1:
        certificates.wrong(
            "names several certificates, but Kafka's settings take one file for the token "
            "endpoint. Put them into one key of a Secret, one after the other"
        )
    for one in found:
        if pattern := one.get("pattern"):
            pattern.wrong(
                "selects files by a pattern, which is not supported; write certificate: and one "
                "key of the Secret"
            )
        path = secrets / one.need("secretName").text() / one.need("certificate").text()
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.location"] = str(path)
    unchecked = login.get("disableTlsHostnameVerification")
    if unchecked is not None and unchecked.text() == "true":
        options["ssl.endpoint.identification.algorithm"] = ""
    return options
