"""OAuth token endpoints.

`token_endpoint` gives unsecured tokens of a short life for one client's credentials,
`identity_provider` signed ones for a client's signed assertion, and the keys to check them with.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sparkmirror.config.clients.sasl import OAuthLogin
from sparkmirror.wire.security.oauth import unsecured_token
from tests.certificates import Certified

CLIENT_ID, CLIENT_SECRET = "mirror", "planted-token-secret-4242"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_KEY_ID = "1"
_RS256 = (padding.PKCS1v15(), SHA256())


@dataclass
class TokenEndpoint:
    """``asked``: the forms that came, refused ones as well."""

    url: str = ""
    lifetime_s: float = 3
    asked: list[str] = field(default_factory=list)

    def properties(self, secret: str = CLIENT_SECRET, *options: str) -> dict[str, str]:
        """What a client's file says to get tokens here; ``options``: more of the JAAS entry."""
        words = (f'clientId="{CLIENT_ID}"', f'clientSecret="{secret}"', 'scope="kafka"', *options)
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required {' '.join(words)};",
        }


@contextmanager
def token_endpoint(
    own: Certified | None = None, directory: Path | None = None
) -> Iterator[TokenEndpoint]:
    """``own``: the certificate of an https endpoint, for localhost; written to ``directory``."""
    found = TokenEndpoint()
    right = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            refused = self.headers["Authorization"] != right
            login = OAuthLogin(claims={"sub": "mirror"}, lifetime_s=found.lifetime_s)
            token = unsecured_token(login, time.time()).text
            body = {"error": "invalid_client"} if refused else {"access_token": token}
            self.send_response(401 if refused else 200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = _server(Handler)
    scheme = "http"
    if own is not None:
        assert directory is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.pem_file(directory / "endpoint.pem"))
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        scheme = "https"
    found.url = f"{scheme}://localhost:{server.server_port}/token"
    with _serving(server):
        yield found


def _rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, 2_048)


@dataclass
class IdentityProvider:
    """Signs tokens for `CLIENT_ID`, whose assertions the key `client` signs.

    ``keys_url``: where brokers find the public keys. ``key``: what tokens are signed with.
    """

    token_url: str
    keys_url: str
    issuer: str = "https://idp.test"
    audience: str = "kafka"
    client: rsa.RSAPrivateKey = field(default_factory=_rsa_key)
    key: rsa.RSAPrivateKey = field(default_factory=_rsa_key)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def properties(self, key_file: Path, signer: rsa.RSAPrivateKey | None = None) -> dict[str, str]:
        """What a client's file says to get tokens here; its key is written to ``key_file``."""
        kinds = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        key_file.write_bytes((signer or self.client).private_bytes(*kinds))
        assertion = "sasl.oauthbearer.assertion."
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.jwt.retriever.class": f"{_PACKAGE}.JwtBearerJwtRetriever",
            "sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required;",
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
            "sasl.oauthbearer.scope": "kafka",
            f"{assertion}private.key.file": str(key_file),
            f"{assertion}algorithm": "RS256",
            f"{assertion}claim.iss": CLIENT_ID,
            f"{assertion}claim.sub": CLIENT_ID,
            f"{assertion}claim.aud": self.token_url,
        }

    def granted(self, form: dict[str, str]) -> str:
        """A token for the assertion in ``form``. Raises ValueError for one that is not right."""
        if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            raise ValueError("another grant")
        head, body, signature = form["assertion"].split(".")
        try:
            self.client.public_key().verify(_decoded(signature), f"{head}.{body}".encode(), *_RS256)
        except InvalidSignature as error:
            raise ValueError("the client's key did not sign this") from error
        claims, now = json.loads(_decoded(body)), time.time()
        rights = (CLIENT_ID, CLIENT_ID, self.token_url)
        if (claims["iss"], claims["sub"], claims["aud"]) != rights:
            raise ValueError("claims of another client, or for another endpoint")
        if not claims["nbf"] <= now + 5 <= claims["exp"] + 5:
            raise ValueError("too early or too late")
        self.claims.append(claims)
        return self._signed({
            "iss": self.issuer, "aud": self.audience, "sub": CLIENT_ID, "scope": form["scope"],
            "iat": int(now), "exp": int(now) + 60,
        })  # fmt: skip

    def _signed(self, claims: dict[str, Any]) -> str:
        head = {"alg": "RS256", "kid": _KEY_ID}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        return f"{signed}.{_encoded(self.key.sign(signed.encode(), *_RS256))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            try:
                token = found.granted(dict(urllib.parse.parse_qsl(text)))
            except (KeyError, ValueError):
                self._send(400, {"error": "invalid_grant"})
            else:
                self._send(200, {"access_token": token, "token_type": "Bearer", "expires_in": 60})

        def do_GET(self) -> None:
            numbers = public.public_numbers()
            exponent, modulus = numbers.e.to_bytes(3, "big"), numbers.n.to_bytes(256, "big")
            key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID,
                   "e": _encoded(exponent), "n": _encoded(modulus)}  # fmt: skip
            self._send(200, {"keys": [key]})

        def _send(self, code: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = _server(Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    found = IdentityProvider(f"{address}/token", f"{address}/keys")
    public = found.key.public_key()  # whatever signs tokens later on
    with _serving(server):
        yield found


def _server(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up
    return server


@contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[None]:
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
