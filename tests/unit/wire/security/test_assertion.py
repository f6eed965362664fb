"""OAUTHBEARER tokens for a signed assertion: what is signed, what is sent, what is wrong."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from sparkmirror.config.clients.assertion import assertion_of
from sparkmirror.config.clients.sasl import sasl_settings
from sparkmirror.errors import ConfigError, Denied
from sparkmirror.wire.security.oauth import TokenSource
from tests.unit.config_files import BASE, load

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65_537, 2_048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
}
NOW_S = 1_700_000_000.5


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[tuple[dict[str, str], str]]]]:
    """Address of a token endpoint; each form that came, and its Authorization header."""
    seen: list[tuple[dict[str, str], str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = dict(urllib.parse.parse_qsl(body, strict_parsing=True))
            seen.append((form, self.headers.get("Authorization", "")))
            refused = form["assertion"] == "refused"
            self.send_response(400 if refused else 200)
            self.end_headers()
            answer = {"error": "invalid_grant"} if refused else {"access_token": "opaque"}
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _properties(url: str, **assertion: object) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.jwt.retriever.class": f"{_PACKAGE}.JwtBearerJwtRetriever",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.scope": "kafka",
    } | {
        f"sasl.oauthbearer.assertion.{name.replace('_', '.')}": str(value)
        for name, value in assertion.items()
    }


def _key_file(directory: Path, algorithm: str, passphrase: str = "") -> Path:
    how = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    path = directory / f"{algorithm}.pem"
    path.write_bytes(_KEYS[algorithm].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    return path


def _token(properties: dict[str, str]) -> str:
    login = sasl_settings(properties, where="cluster A").oauth
    assert login is not None
    return TokenSource(login, "cluster A", clock=lambda: NOW_S).token()


def _bytes(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _verify(algorithm: str, signed: bytes, signature: bytes) -> None:
    public = _KEYS[algorithm].public_key()
    if algorithm == "RS256":
        public.verify(signature, signed, padding.PKCS1v15(), SHA256())
        return
    r, s = (int.from_bytes(signature[at : at + 32], "big") for at in (0, 32))
    public.verify(encode_dss_signature(r, s), signed, ec.ECDSA(SHA256()))


def test_times_may_have_any_number_of_zeros_before_them() -> None:
    zeros = "0" * 5_000
    given = _properties("u", file="f", claim_exp_seconds=f"{zeros}9", claim_nbf_seconds=f"+{zeros}")
    found = assertion_of(given, where="cluster A")
    assert (found.expires_s, found.before_s) == (9, 0)


@pytest.mark.parametrize(
    ("algorithm", "passphrase"), [("RS256", ""), ("ES256", ""), ("RS256", "planted-pass")]
)
def test_an_assertion_is_signed_and_shown(
    algorithm: str, passphrase: str, tmp_path: Path, endpoint: Any
) -> None:
    url, seen = endpoint
    template = tmp_path / "template.json"
    template.write_text('{"header": {"kid": "7"}, "payload": {"tenant": "t", "iss": "other"}}')
    properties = _properties(
        url, algorithm=algorithm, private_key_file=_key_file(tmp_path, algorithm, passphrase),
        private_key_passphrase=passphrase, template_file=template, claim_iss="mirror",
        claim_sub="mirror-sub", claim_aud="https://idp", claim_exp_seconds=120,
        claim_nbf_seconds=5, claim_jti_include="true",
    )  # fmt: skip
    assert _token(properties) == "opaque"
    ((form, authorization),) = seen
    assert authorization == ""
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert form["scope"] == "kafka"
    header, payload, signature = form["assertion"].split(".")
    _verify(algorithm, f"{header}.{payload}".encode(), _bytes(signature))
    assert json.loads(_bytes(header)) == {"kid": "7", "alg": algorithm, "typ": "JWT"}
    claims = json.loads(_bytes(payload))
    assert len(claims.pop("jti")) == 36
    now = int(NOW_S)
    assert claims == {
        "tenant": "t", "iss": "mirror", "sub": "mirror-sub", "aud": "https://idp",
        "iat": now, "exp": now + 120, "nbf": now - 5,
    }  # fmt: skip


def test_a_ready_assertion_is_read_anew_for_each_token(tmp_path: Path, endpoint: Any) -> None:
    url, seen = endpoint
    file = tmp_path / "assertion.jwt"
    for text in ("first", "second"):
        file.write_text(f"{text}\n")
        assert _token(_properties(url, file=file)) == "opaque"
    assert [form["assertion"] for form, _ in seen] == ["first", "second"]
    file.write_text("refused")
    with pytest.raises(
        Denied, match=r"refused the assertion \(HTTP 400, invalid_grant\)"
    ) as caught:
        _token(_properties(url, file=file))
    assert "claims of the assertion" in caught.value.do


@pytest.mark.parametrize(
    ("assertion", "told"),
    [
        ({"private_key_file": "away.pem"}, "away.pem cannot be read: No such file"),
        ({"private_key_file": "bad.pem"}, "it is not a PEM key, or its passphrase is wrong"),
        ({"private_key_file": "ES256.pem"}, "is not a key for RS256"),
        ({"private_key_file": "RS256.pem", "algorithm": "ES256"}, "is not a key for ES256"),
        ({"private_key_file": "RS256.pem", "private_key_passphrase": "x"}, "passphrase is wrong"),
        ({"private_key_file": "RS256.pem", "template_file": "bad.pem"}, "is not a JSON object"),
        ({"file": "away.jwt"}, "away.jwt cannot be read"),
    ],
)
def test_an_assertion_that_cannot_be_made(
    assertion: dict[str, str], told: str, tmp_path: Path, endpoint: Any
) -> None:
    url, seen = endpoint
    for algorithm in _KEYS:
        _key_file(tmp_path, algorithm)
    (tmp_path / "bad.pem").write_text("no key")
    placed = {
        name: str(tmp_path / text) if name.endswith("file") else text
        for name, text in assertion.items()
    }
    with pytest.raises(Denied) as caught:
        _token(_properties(url, **placed))
    assert told in caught.value.what
    assert "sasl.oauthbearer.assertion." in caught.value.do
    assert seen == []


def test_what_a_file_must_say(tmp_path: Path) -> None:
    for url, key, told in (
        ("https://idp/token", {}, "has neither an assertion nor a key to sign one"),
        ("file:/token", {"file": "x"}, "needs a token endpoint"),
    ):
        with pytest.raises(ConfigError) as caught:
            sasl_settings(_properties(url, **key), where="cluster A")
        assert told in caught.value.what
    # Without the class that asks with assertions, they have no effect; and that is said.
    lines = _properties("https://idp/token", file="x")
    del lines["sasl.oauthbearer.jwt.retriever.class"]
    lines["sasl.oauthbearer.client.credentials.client.id"] = "mirror"
    lines["sasl.oauthbearer.client.credentials.client.secret"] = "planted-secret"
    text = BASE + "".join(f"A.{key}={value}\n" for key, value in lines.items())
    (told,) = [line for line in load(tmp_path, text).warnings if "assertion" in line]
    assert "it has no effect without sasl.oauthbearer.jwt.retriever.class=JwtBearer" in told
