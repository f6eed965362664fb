"""What the mechanisms send, byte by byte: the RFCs' own examples, and what other clients send.

Java's classes send the bytes of PLAIN and OAUTHBEARER below (JDK 17's SaslClient, Kafka 4.4.0's
OAuthBearerClientInitialResponse).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.net.sasl.gssapi import SaslMechanismGSSAPI
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
from kafka.net.sasl.plain import SaslMechanismPlain

from sparkmirror.config.clients.sasl import OAuthLogin, sasl_settings
from sparkmirror.errors import ClusterError, ConfigError, Denied
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.security.kerberos import GssapiExchange
from sparkmirror.wire.security.mechanisms import ChallengeRefused, Mechanism, OAuthBearer, Plain
from sparkmirror.wire.security.oauth import TokenSource
from sparkmirror.wire.security.sasl import Exchange, Login, authenticate

OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def state(mechanism: Mechanism) -> tuple[bool, bool]:
    return mechanism.is_done(), mechanism.is_authenticated()


# --- PLAIN ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("username", "password", "sent"),
    [
        ("tim", "tanstaaftanstaaf", b"\0tim\0tanstaaftanstaaf"),  # RFC 4616, section 4
        ("zo\u00eb", "p\u00e4ss w\u00f6rd,=", b"\0zo\xc3\xab\0p\xc3\xa4ss w\xc3\xb6rd,="),
        ("", "", b"\0\0"),
    ],
)
def test_plain_sends_the_bytes_of_the_rfc(username: str, password: str, sent: bytes) -> None:
    assert Plain(username, password).auth_bytes() == sent
    other = SaslMechanismPlain(sasl_plain_username=username, sasl_plain_password=password)
    # kafka-python also names the user as the identity to act as; Java's client does not.
    assert other.auth_bytes() == username.encode() + sent


@pytest.mark.parametrize(("response", "accepted"), [(b"", True), (b"x", False)])
def test_plain_ends_with_one_response(response: bytes, accepted: bool) -> None:
    mechanism = Plain("a", "b")
    assert state(mechanism) == (False, False)
    mechanism.receive(response)
    assert state(mechanism) == (True, accepted)


def test_a_separator_within_a_password_is_refused_before_it_is_sent() -> None:
    jaas = f'{PLAIN_MODULE} required username="a" password="b";'
    properties = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    login = Login(
        ClusterClient("east", (), "c", security_protocol="SASL_SSL", properties=properties)
    )
    for name, password in (("a\0planted", "b"), ("a", "b\0planted")):
        login.settings = SimpleNamespace(  # type: ignore[assignment]
            mechanism="PLAIN", username=name, password=password, kerberos=None
        )
        with pytest.raises(ConfigError, match="NUL") as caught:
            login.mechanism("h")
        assert "planted" not in str(caught.value)
        assert caught.value.do


# --- OAUTHBEARER ----------------------------------------------------------------------------------


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    """The token and extensions, for kafka-python."""

    def __init__(self, token: str, extensions: dict[str, str]) -> None:
        self._token, self._extensions = token, extensions

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions


@pytest.mark.parametrize(
    ("extensions", "sent"),
    [
        ({}, b"n,,\x01auth=Bearer a.b.c\x01\x01"),
        ({"traceId": "123"}, b"n,,\x01auth=Bearer a.b.c\x01traceId=123\x01\x01"),
        (
            {"logicalCluster": "lkc 1", "identityPoolId": "p=2"},
            b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc 1\x01identityPoolId=p=2\x01\x01",
        ),
    ],
)
def test_a_token_and_its_extensions(extensions: dict[str, str], sent: bytes) -> None:
    assert OAuthBearer(lambda: "a.b.c", extensions).auth_bytes() == sent
    other = SaslMechanismOAuth(sasl_oauth_token_provider=Provider("a.b.c", extensions))
    assert other.auth_bytes() == sent


def test_the_token_of_the_rfc() -> None:
    token = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
    sent = OAuthBearer(lambda: token, {"host": "server.example.com", "port": "143"}).auth_bytes()
    # RFC 7628, section 4.1, without the identity to act as, in another order of the pairs.
    head, *pairs = sent.split(b"\x01")
    assert head == b"n,,"
    assert sorted(pairs) == [
        b"", b"", b"auth=Bearer " + token.encode(), b"host=server.example.com", b"port=143",
    ]  # fmt: skip


def test_a_refused_token_is_followed_by_the_message_that_the_rfc_requires() -> None:
    tokens = iter(["first"])
    ours = OAuthBearer(lambda: next(tokens), {})
    other = SaslMechanismOAuth(sasl_oauth_token_provider=Provider("first", {}))
    for response in (b'{"status":"invalid_token"}', b'{"status":"invalid_token"}', b""):
        assert ours.auth_bytes() == other.auth_bytes()
        ours.receive(response)
        other.receive(response)
        assert state(ours) == state(other) == (response == b"", response == b"")


def test_the_broker_gives_the_reason_after_that_message() -> None:
    jaas = f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="x";'
    properties = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": jaas}
    login = Login(
        ClusterClient("east", (), "c", security_protocol="SASL_SSL", properties=properties)
    )
    sent: list[bytes] = []

    def answer(data: bytes) -> tuple[int, str, bytes, int]:
        sent.append(data)
        if len(sent) == 1:
            return 0, "", b'{"status":"invalid_token"}', 0
        return 58, '{"status":"invalid_token"}', b"", 0

    with pytest.raises(Denied, match="invalid_token") as caught:
        authenticate(login, Exchange(lambda _: (0, []), answer), "h", "cluster east")
    assert sent[1:] == [b"\x01"]
    assert "audience" in caught.value.do


@pytest.mark.parametrize("text", ["", "a\x01auth=Bearer b", "two\nlines", "a b", "t\u00f6ken"])
def test_a_token_that_cannot_be_one_is_not_sent(text: str, tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Denied, match="no token may contain") as caught:
        TokenSource(OAuthLogin(url=f"file://{path}"), "cluster A").token()
    assert caught.value.where == "cluster A"
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize("prefix", ["extension_", "unsecuredLoginExtension_"])
@pytest.mark.parametrize(
    ("option", "what"),
    [
        ('planted1="x"', "name of an option"),
        ('planted_x="x"', "name of an option"),
        ('auth="planted"', "name of an option"),
        ('traceId=""', "value of an option"),
        ('traceId="planted\u00e4"', "value of an option"),
        ('traceId="planted\x01"', "value of an option"),
    ],
)
def test_extensions_that_java_does_not_accept(prefix: str, option: str, what: str) -> None:
    properties = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="me" '
        f"{prefix}{option};",
    }
    if prefix == "extension_":
        properties |= {
            "sasl.jaas.config": f'{OAUTH_MODULE} required clientId="a" clientSecret="b" '
            f"{prefix}{option};",
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
            "OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": "https://x",
        }
    with pytest.raises(ConfigError, match=what) as caught:
        sasl_settings(properties, where="cluster A")
    assert "planted" not in str(caught.value)
    assert prefix in caught.value.what


# --- GSSAPI ---------------------------------------------------------------------------------------


class Context:
    """A security context that is complete after ``rounds`` tokens; it wraps by a prefix."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.complete = False
        self.taken: list[bytes | None] = []
        self.encrypted: list[bool] = []
        self.initiator_name = "mirror/h@REALM"

    def step(self, token: bytes | None) -> bytes | None:
        self.taken.append(token)
        self.complete = len(self.taken) > self.rounds
        return None if self.complete else b"token %d" % len(self.taken)

    def unwrap(self, data: bytes) -> Any:
        assert data.startswith(b"wrapped ")
        return SimpleNamespace(message=data.removeprefix(b"wrapped "))

    def wrap(self, data: bytes, encrypt: bool) -> Any:
        self.encrypted.append(encrypt)
        return SimpleNamespace(message=b"wrapped " + data)


class KafkaPython(SaslMechanismGSSAPI):  # type: ignore[misc]
    """kafka-python's exchange over the same kind of context."""

    def __init__(self, context: Context) -> None:
        self._is_done = self._is_authenticated = False
        self.auth_id = context.initiator_name
        self._client_ctx = context
        self._next_token = context.step(None)


OFFER = b"wrapped \x07\x00\xff\xff"


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_the_exchange_of_the_rfc(rounds: int) -> None:
    ours, other = Context(rounds), Context(rounds)
    exchange, reference = GssapiExchange(ours), KafkaPython(other)
    for number in range(rounds):
        assert exchange.auth_bytes() == reference.auth_bytes() == b"token %d" % (number + 1)
        exchange.receive(b"response %d" % number)
        reference.receive(b"response %d" % number)
        assert state(exchange) == (False, False)
    assert exchange.auth_bytes() == reference.auth_bytes() == b""
    exchange.receive(OFFER)
    reference.receive(OFFER)
    assert (exchange.is_done(), reference.is_done()) == (False, False)
    last = exchange.auth_bytes()
    # The layer "none", 65,536 bytes, and the principal, as Java's client sends them.
    assert last == b"wrapped \x01\x01\x00\x00mirror/h@REALM"
    # kafka-python sends the broker's own maximum back.
    assert reference.auth_bytes() == b"wrapped \x01\x00\xff\xffmirror/h@REALM"
    assert ours.encrypted == other.encrypted == [False]
    assert ours.taken == other.taken
    assert state(exchange) == state(reference) == (True, True)
    exchange.receive(b"")
    assert state(exchange) == (True, True)
    with pytest.raises(ValueError, match="last"):
        exchange.receive(b"more")


@pytest.mark.parametrize("offer", [b"", b"\x01\0\0", b"\x01\0\0\0\0"])
def test_an_offer_of_another_size_is_refused(offer: bytes) -> None:
    exchange = GssapiExchange(Context(1))
    exchange.receive(b"response")
    with pytest.raises(ValueError, match="four bytes"):
        exchange.receive(b"wrapped " + offer)
    assert state(exchange) == (False, False)


@pytest.mark.parametrize("layers", range(8))
def test_only_authentication_is_selected(layers: int) -> None:
    context = Context(1)
    exchange = GssapiExchange(context)
    exchange.receive(b"response")
    offer = b"wrapped " + bytes([layers, 0, 0, 0])
    if layers & 1:
        exchange.receive(offer)
        assert exchange.auth_bytes()[len(b"wrapped ")] == 1
        return
    with pytest.raises(ChallengeRefused, match="integrity or confidentiality") as caught:
        exchange.receive(offer)
    assert "sasl.qop=auth" in caught.value.do
    assert context.encrypted == []


def test_a_broker_that_requires_a_security_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    jaas = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
    properties = {
        "sasl.mechanism": "GSSAPI",
        "sasl.jaas.config": jaas,
        "sasl.kerberos.service.name": "kafka",
    }
    client = ClusterClient("east", (), "c", security_protocol="SASL_SSL", properties=properties)
    login = Login(client)
    exchange = GssapiExchange(Context(1))
    monkeypatch.setattr(Login, "mechanism", lambda *_: exchange)
    answers = iter([b"response", b"wrapped \x06\0\0\0"])
    with pytest.raises(ClusterError, match="GSSAPI challenge is refused: it requires") as caught:
        authenticate(
            login, Exchange(lambda _: (0, []), lambda _: (0, "", next(answers), 0)), "h", "here"
        )
    assert caught.value.where == "here"
