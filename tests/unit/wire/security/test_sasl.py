"""SASL settings, tokens, signed messages: everything of a login that needs no broker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import os
import re
import urllib.error
from email.message import Message
from pathlib import Path

import pytest

from sparkmirror.config.clients.sasl import OAuthLogin, sasl_settings
from sparkmirror.config.clients.security import secured
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.data.coordination.sealed_options import KEY_VARIABLE, new_key
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.errors import ClusterError, ConfigError, Denied, MachineError, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.security.oauth import Token, TokenSource, unsecured_token
from sparkmirror.wire.security.sasl import (
    Exchange,
    Login,
    authenticate,
)

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "AWS_MSK_IAM": "software.amazon.msk.auth.iam.IAMLoginModule",
}
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def settings(mechanism: str, options: str, **more: str):
    properties = {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{MODULES[mechanism]} required {options};",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return sasl_settings(properties, where="cluster A")


def test_kerberos_as_in_java():
    found = settings(
        "GSSAPI",
        'useKeyTab=true storeKey=true keyTab="file:///etc/x.keytab" principal="m@R"',
        sasl_kerberos_service_name="kafka",
    ).kerberos
    assert found is not None
    assert (found.service, found.principal, found.keytab) == ("kafka", "m@R", "/etc/x.keytab")


@pytest.mark.parametrize(
    ("mechanism", "options", "more", "what"),
    [
        ("PLAIN", "username=a", {}, "has no password"),
        ("PLAIN", "username=a password=b tokenauth=true", {}, "not supported: tokenauth"),
        ("GSSAPI", "useKeyTab=true principal=x", {"sasl_kerberos_service_name": "k"}, "no keyTab"),
        ("GSSAPI", 'useKeyTab=true keyTab="x"', {"sasl_kerberos_service_name": "k"},
         "no principal"),
        ("GSSAPI", "useTicketCache=true", {}, "no Kerberos service name"),
        ("GSSAPI", "useTicketCache=true serviceName=a", {"sasl_kerberos_service_name": "b"},
         "is a in the JAAS entry and b in"),
        ("GSSAPI", "storeKey=true", {"sasl_kerberos_service_name": "b"}, "neither useKeyTab"),
        ("GSSAPI", "useTicketCache=true serviceName=a useKeytab=x", {}, "supported: useKeytab"),
        ("OAUTHBEARER", "", {}, "names no principal"),
        ("OAUTHBEARER", 'clientId="a"', {}, "not supported: clientId"),
        ("OAUTHBEARER", 'unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="x"', {},
         "is not a number"),
        ("OAUTHBEARER", "", {"sasl_login_callback_handler_class": HANDLER}, "token.endpoint.url"),
        ("OAUTHBEARER", "", {"sasl_login_callback_handler_class": HANDLER,
         "sasl_oauthbearer_token_endpoint_url": "https://x"}, "no client id"),
        ("OAUTHBEARER", "", {"sasl_oauthbearer_jwt_retriever_class": "a.B"}, "B is not supported"),
        ("PLAIN", "username=a password=b", {"sasl_login_callback_handler_class": "x.Y"},
         "x.Y names Java code"),
        ("PLAIN", "username=a password=b", {"sasl_login_class": "x.Y"}, "x.Y names Java code"),
        ("AWS_MSK_IAM", 'awsRoleArn="x"', {}, "not supported: awsRoleArn"),
        ("AWS_MSK_IAM", "", {"security_protocol": "SASL_PLAINTEXT"}, "over TLS only"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(mechanism: str, options: str, more: dict[str, str], what: str):
    with pytest.raises(ConfigError) as caught:
        settings(mechanism, options, **more)
    assert what in caught.value.what
    assert caught.value.do


@pytest.mark.parametrize(
    ("mechanism", "options", "hidden"),
    [
        # Forgotten quotes: the rest of a password becomes options.
        ("PLAIN", "username=a password=b hunter=c", ["hunter"]),
        ("PLAIN", "username=a password=b hunter=c useKeyTab=true x=y", ["hunter", "x"]),
        ("GSSAPI", "useTicketCache=true serviceName=a hunter2=x", ["hunter2"]),
        ("OAUTHBEARER", "unsecuredLoginStringClaim_sub=a hunter2=x", ["hunter2"]),
        ("PLAIN", "username=a password=b hunter", ["hunter"]),
        ("PLAIN", "username=a password=b hunter=;", ["hunter"]),
        ("PLAIN", "username=a password=b extension_hunter=c", ["hunter"]),
    ],
)
def test_no_part_of_a_password_shows_as_an_option(mechanism: str, options: str, hidden: list[str]):
    with pytest.raises(ConfigError) as caught:
        settings(mechanism, options)
    said = f"{caught.value} {caught.value!r}"
    for part in hidden:
        assert not re.search(rf"\b{part}\b|_{part}", said)
    assert "double quotes" in said
    if "useKeyTab" in options:
        assert "useKeyTab and 2 that are not named here" in said


def test_the_mechanism_and_the_module_have_to_fit():
    with pytest.raises(ConfigError, match=r"needs the login module ScramLoginModule"):
        sasl_settings(
            {"sasl.mechanism": "SCRAM-SHA-256",
             "sasl.jaas.config": f"{MODULES['PLAIN']} required username=a password=b;"},
            where="A",
        )  # fmt: skip
    with pytest.raises(ConfigError, match=r"sasl\.mechanism=scram-sha-256 is not supported"):
        sasl_settings({"sasl.mechanism": "scram-sha-256"}, where="A")


def test_a_client_keeps_only_what_its_protocol_uses():
    properties = {
        "ssl.truststore.location": "/t",
        "sasl.mechanism": "PLAIN",
        "acks": "all",
        "sasl.jaas.config": f"{MODULES['PLAIN']} required username=a password=b;",
    }
    for protocol, kept in (
        ("PLAINTEXT", {"acks"}),
        ("SSL", {"acks", "ssl.truststore.location"}),
        ("SASL_PLAINTEXT", {"acks", "sasl.mechanism", "sasl.jaas.config"}),
        ("SASL_SSL", set(properties)),
    ):  # fmt: skip
        assert set(secured("A", properties, protocol, path="f", conf={}, environment={})) == kept


def test_a_file_with_security_keys_is_remarked_on_where_they_do_nothing(tmp_path: Path):
    path = tmp_path / "mm2.properties"
    path.write_text(
        "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
        "A.security.protocol=SASL_SSL\nA.sasl.mechanism=PLAIN\n"
        f"A.sasl.jaas.config={MODULES['PLAIN']} required username=u password=hunter2;\n"
        "A.sasl.kerberos.service.name=kafka\nA.ssl.provider=X\nB.ssl.key.password=hunter3\n"
        "ssl.endpoint.identification.algorithm=\n"
    )
    loaded = load_mm2(path)
    (flow,) = loaded.flows
    for client in (flow.source, flow.source_admin):
        assert client.security_protocol == "SASL_SSL"
        assert client.properties["sasl.mechanism"] == "PLAIN"
    assert flow.target.properties == {}
    told = " ".join(loaded.warnings)
    for part in (
        "A.sasl.kerberos.service.name (line 8): it has no effect with sasl.mechanism=PLAIN",
        "A.ssl.provider (line 9): OpenSSL does this here",
        "B.ssl.key.password (line 10): it has no effect with security.protocol=PLAINTEXT",
    ):
        assert part in told
    assert "identification.algorithm (line" not in told  # it counts for A
    assert "hunter" not in repr(loaded)


def test_plans_hold_the_properties_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "mm2.properties"
    path.write_text(
        "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.jaas.config={MODULES['PLAIN']} required username=u password=hunter2;\n"
    )
    (flow,) = load_mm2(path).flows
    key = new_key()
    text = encode_flow(flow, key)
    assert "hunter2" not in text
    assert "jaas" not in text
    monkeypatch.setenv(KEY_VARIABLE, key)
    assert decode_flow(text) == flow
    assert "hunter2" not in repr(decode_flow(text))
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    with pytest.raises(MachineError, match=KEY_VARIABLE):
        decode_flow(text)
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(MachineError, match=KEY_VARIABLE):
        decode_flow(text)
    assert decode_flow(encode_flow(flow)).source.properties == {}


# -- tokens ----------------------------------------------------------------------------------------


class Tokens(TokenSource):
    """A source whose endpoint is a list of lifetimes; 0 = it fails."""

    def __init__(self, *lives_s: float, **login: object) -> None:
        self.now = 1_000.0
        self.lives_s = list(lives_s)
        super().__init__(
            OAuthLogin(url="https://x", **login),  # type: ignore[arg-type]
            "cluster A",
            clock=lambda: self.now,
        )

    def _fetch(self) -> Token:
        life_s = self.lives_s.pop(0)
        if not life_s:
            raise Unreachable("no answer.")
        return Token(f"token-{self.now:.0f}", self.now, self.now + life_s)


def test_a_token_is_fetched_when_most_of_its_life_is_over():
    source = Tokens(1_000, 1_000, refresh_jitter=0.0, refresh_buffer_s=10.0)
    assert source.token() == "token-1000"
    source.now = 1_799
    assert source.token() == "token-1000"
    source.now = 1_801
    assert source.token() == "token-1801"


def test_the_buffer_comes_before_the_factor():
    source = Tokens(1_000, 1_000, refresh_jitter=0.0, refresh_buffer_s=400.0)
    source.token()
    source.now = 1_601
    assert source.token() == "token-1601"


def test_an_old_token_serves_until_its_end():
    source = Tokens(100, 0, 0, 50, refresh_jitter=0.0)
    assert source.token() == "token-1000"
    source.now = 1_085
    assert source.token() == "token-1000"
    source.now = 1_101
    with pytest.raises(Unreachable):
        source.token()
    assert source.token() == "token-1101"


def test_a_token_from_a_file(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("opaque\n")
    assert TokenSource(OAuthLogin(url=f"file://{path}"), "A").token() == "opaque"
    expired = unsecured_token(OAuthLogin(claims={"sub": "x"}, lifetime_s=-5), 1_000.0)
    path.write_text(expired.text)
    with pytest.raises(Denied, match="has already expired"):
        TokenSource(OAuthLogin(url=f"file://{path}"), "A", clock=lambda: 1_000.0).token()
    path.unlink()
    with pytest.raises(Denied, match="cannot be read"):
        TokenSource(OAuthLogin(url=f"file://{path}"), "A").token()


@pytest.mark.parametrize(
    ("status", "kind", "what"),
    [(503, Unreachable, "returns no token .HTTP 503"), (401, Denied, "refused .* .HTTP 401, bad")],
)
def test_an_endpoint_that_is_ill_is_not_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: type[ClusterError], what: str
):
    def post(_: TokenSource) -> dict[str, object]:
        body = io.BytesIO(b'{"error": "bad", "hint": "planted"}')
        raise urllib.error.HTTPError("https://x", status, "no", Message(), body)

    monkeypatch.setattr(TokenSource, "_post", post)
    login = OAuthLogin(url="https://x", retry_backoff_s=0.01, retry_backoff_s_max=0.05)
    with pytest.raises(kind, match=what) as caught:
        TokenSource(login, "cluster A").token()
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("now", [1_700_000_000.1239, 1_700_000_000.9999, 1_700_000_000.0])
def test_a_broker_that_looks_at_once_takes_an_unsecured_token(now: float):
    """Its clock counts whole milliseconds: what was issued later within this one is refused."""
    body = unsecured_token(OAuthLogin(claims={"sub": "x"}), now).text.split(".")[1]
    issued = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["iat"]
    assert now - 1 < issued
    assert 1000 * issued <= int(now * 1000)


def test_an_unsecured_token_is_javas():
    found = settings(
        "OAUTHBEARER",
        'unsecuredLoginStringClaim_sub="me" unsecuredLoginNumberClaim_n="1.5" '
        'unsecuredLoginListClaim_scope=",a,b" unsecuredLoginLifetimeSeconds="60"',
    ).oauth
    assert found is not None
    head, body, signature = unsecured_token(found, 100.0).text.split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "none"}
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    assert claims == {"iat": 100.0, "exp": 160.0, "sub": "me", "n": 1.5, "scope": ["a", "b"]}
    assert signature == ""


# -- exchanges -------------------------------------------------------------------------------------


def _login(mechanism: str, options: str, protocol: str = "SASL_SSL") -> Login:
    jaas = f"{MODULES[mechanism]} required {options};"
    properties = {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    return Login(ClusterClient("east", (), "c", security_protocol=protocol, properties=properties))


def test_aws_signs_the_host_and_the_region_of_its_name(monkeypatch: pytest.MonkeyPatch):
    """The signature is computed here once more, by the steps of Signature Version 4."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    host = "b-1.demo.abc.c2.kafka.eu-west-1.amazonaws.com"
    mechanism = _login("AWS_MSK_IAM", "").mechanism(host)
    message = json.loads(mechanism.auth_bytes())
    assert message["host"] == host
    assert message["action"] == "kafka-cluster:Connect"
    assert "planted" not in json.dumps(message)
    stamp = message["x-amz-date"]
    scope = f"{stamp[:8]}/eu-west-1/kafka-cluster/aws4_request"
    assert message["x-amz-credential"] == f"AKIDEXAMPLE/{scope}"
    query = "&".join(
        f"{key}={value.replace('/', '%2F').replace(':', '%3A')}"
        for key, value in (
            ("Action", "kafka-cluster:Connect"),
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", f"AKIDEXAMPLE/{scope}"),
            ("X-Amz-Date", stamp),
            ("X-Amz-Expires", "900"),
            ("X-Amz-SignedHeaders", "host"),
        )
    )
    nothing = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{nothing}"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = b"AWS4planted"
    for part in (*scope.split("/"), to_sign):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    assert message["x-amz-signature"] == key.hex()


def test_aws_without_a_region_or_credentials(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(ConfigError, match="finds no AWS region"):
        _login("AWS_MSK_IAM", "").mechanism("kafka.example.com")


def test_scram_names_are_escaped_and_delegation_tokens_said():
    first = _login("SCRAM-SHA-256", 'username="a,b=c" password="x" tokenauth="true"')
    sent = first.mechanism("h").auth_bytes()
    assert sent.startswith(b"n,,n=a=2Cb=3Dc,r=")
    assert sent.endswith(b",tokenauth=true")


def test_a_broker_that_sends_nonsense_or_never_ends():
    login = _login("SCRAM-SHA-256", "username=a password=b")

    def answers(data: bytes) -> Exchange:
        return Exchange(lambda _: (0, []), lambda _: (0, "", data, 0))

    with pytest.raises(ClusterError, match="response is invalid"):
        authenticate(login, answers(b"what?"), "h", "cluster east")
    tokens = _login("OAUTHBEARER", 'unsecuredLoginStringClaim_sub="x"')
    with pytest.raises(ClusterError, match="the exchange did not finish"):
        authenticate(tokens, answers(b"{}"), "h", "cluster east")


def _challenge(sent: bytes, nonce: bytes, salt: bytes, iterations: bytes) -> bytes:
    """A broker's first SCRAM message; ``nonce`` is what it adds to the client's."""
    ours = sent.partition(b"r=")[2].partition(b",")[0]
    return b"r=%b%b,s=%b,i=%b" % (ours, nonce, base64.b64encode(salt), iterations)


@pytest.mark.parametrize(
    ("nonce", "salt", "iterations", "what"),
    [
        (b"more", b"s" * 16, b"1", "1 iterations; 4,096 to 1,000,000 are accepted"),
        (b"more", b"s" * 16, b"4095", "4095 iterations"),
        (b"more", b"s" * 16, b"1000001", "1000001 iterations"),
        (b"more", b"s" * 16, b"9" * 5_000, "no number of iterations"),
        (b"more", b"s" * 16, b"-4096", "no number of iterations"),
        (b"more", b"s" * 16, "\u0664\u0660\u0669\u0666".encode(), "iterations"),
        (b"", b"s" * 16, b"4096", "does not extend ours"),
        (b"more", b"", b"4096", "a salt of 0 bytes"),
        (b"more", b"s" * 7, b"4096", "a salt of 7 bytes"),
        (b"more", b"s" * 1_025, b"4096", "a salt of 1025 bytes"),
    ],
)
def test_scram_answers_no_challenge_that_gives_the_password_away(
    nonce: bytes, salt: bytes, iterations: bytes, what: str
):
    login = _login("SCRAM-SHA-256", "username=a password=planted")
    sent: list[bytes] = []

    def answer(data: bytes) -> tuple[int, str, bytes, int]:
        sent.append(data)
        return 0, "", _challenge(data, nonce, salt, iterations), 0

    with pytest.raises(ClusterError, match="is refused") as caught:
        authenticate(login, Exchange(lambda _: (0, []), answer), "h", "cluster east")
    assert len(sent) == 1  # no proof of the password went out
    assert what in caught.value.what
    assert caught.value.where == "cluster east"
    assert caught.value.do


@pytest.mark.parametrize("iterations", [4_096, 20_000])
def test_scram_answers_what_kafka_asks_for(iterations: int):
    login = _login("SCRAM-SHA-256", "username=a password=b")
    sent: list[bytes] = []

    def answer(data: bytes) -> tuple[int, str, bytes, int]:
        sent.append(data)
        if len(sent) == 1:
            return 0, "", _challenge(data, b"more", b"s" * 26, b"%d" % iterations), 0
        bare, first = sent[0][3:], _challenge(sent[0], b"more", b"s" * 26, b"%d" % iterations)
        message = b",".join((bare, first, data.rpartition(b",p=")[0]))
        salted = hashlib.pbkdf2_hmac("sha256", b"b", b"s" * 26, iterations)
        key = hmac.digest(salted, b"Server Key", "sha256")
        return 0, "", b"v=" + base64.b64encode(hmac.digest(key, message, "sha256")), 9

    exchange = Exchange(lambda _: (0, []), answer)
    assert authenticate(login, exchange, "h", "cluster east") == 9
    assert len(sent) == 2


def test_brokers_before_kafka_1_0_take_bare_tokens():
    sent: list[tuple[bytes, bool]] = []

    def bare(data: bytes, answered: bool) -> bytes:
        sent.append((data, answered))
        return b""

    exchange = Exchange(lambda _: (0, ["PLAIN"]), lambda _: (1, "", b"", 0), bare)
    login = _login("PLAIN", "username=a password=b")
    assert authenticate(login, exchange, "h", "cluster east") == 0
    assert sent == [(b"\0a\0b", True)]
