"""Token endpoints that answer oddly: where the client secret goes, and what is made of answers."""

from __future__ import annotations

import ssl
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kafka.protocol.sasl import SaslHandshakeResponse

from sparkmirror.config.clients.sasl import OAuthLogin
from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.errors import ClusterError, ConfigError, Defect, Denied, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.security.oauth import TokenSource
from sparkmirror.wire.security.sasl import Login
from tests.certificates import Authority
from tests.unit.wire.fake_broker import FakeBroker

SECRET = "planted-token-secret"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@dataclass
class Endpoint:
    """``seen``: method and Authorization header of what came. ``chunked``: of ``body``."""

    url: str = ""
    status: int = 200
    location: str = ""
    body: bytes = b'{"access_token": "opaque"}'
    chunked: bool = False
    seen: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def serve(tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.seen.append((self.command, self.headers.get("Authorization", "")))
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.send_response(found.status)
            if found.location:
                self.send_header("Location", found.location)
            if found.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(found.body)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    found.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/token"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def source(url: str) -> TokenSource:
    login = OAuthLogin(
        url=url,
        client_id="mirror",
        client_secret=SECRET,
        retry_backoff_s=0.01,
        retry_backoff_s_max=0.02,
    )
    return TokenSource(login, "cluster A")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_client_secret_follows_no_redirect(status: int) -> None:
    with serve() as first, serve() as second:
        first.status, first.location = status, second.url
        with pytest.raises(Denied, match="redirects") as caught:
            source(first.url).token()
        assert second.seen == []
        assert len(first.seen) == 1
        assert second.url.split("/")[2] in caught.value.what
        assert "sasl.oauthbearer.token.endpoint.url" in caught.value.do
        # Not on the same server either: a redirect may take the request from https to http.
        first.location = first.url
        with pytest.raises(Denied, match="redirects"):
            source(first.url).token()
        assert len(first.seen) == 2


def test_the_client_secret_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's client reads none from the environment, and this one is in clear text."""
    with serve() as endpoint, serve() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/token"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        source(endpoint.url).token()
        assert proxy.seen == []
        assert len(endpoint.seen) == 1


def test_a_redirect_shows_no_control_characters_and_no_query() -> None:
    with serve() as endpoint:
        endpoint.status = 302
        endpoint.location = "http://evil\x1b[2J.example/x?client_secret=planted"
        with pytest.raises(Denied) as caught:
            source(endpoint.url).token()
        assert "\x1b" not in str(caught.value)
        assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"access_token": "x", "expires_in": 1' + b"0" * 400 + b"}",
        b'{"access_token": "x", "expires_in": NaN}',
        b'{"access_token": "x", "expires_in": true}',
        b'{"access_token": "x", "expires_in": "soon"}',
        b'{"access_token": 5}',
        b"[]",
        b"\xff\xfe",
    ],
)
def test_odd_answers_end_in_a_token_or_an_error(body: bytes) -> None:
    with serve() as endpoint:
        endpoint.body = body
        tokens = source(endpoint.url)
        if b'"x"' in body:
            assert tokens.token() == "x"
        else:
            with pytest.raises(Unreachable):
                tokens.token()


def test_an_answer_that_is_no_http() -> None:
    with serve() as endpoint:
        endpoint.status = 99999999999
        with pytest.raises(Unreachable):
            source(endpoint.url).token()


@pytest.mark.parametrize("valid", [True, False])
def test_an_endpoint_that_is_cut_off_while_it_says_why(valid: bool) -> None:
    """A proxy before it answers 503, and ends in the middle of the reason."""
    with serve() as endpoint:
        tokens = source(endpoint.url)
        if valid:
            assert tokens.token() == "opaque"
        tokens._refresh_at = 0.0
        endpoint.status, endpoint.chunked, endpoint.body = 503, True, b'20\r\n{"error": "bu'
        if valid:
            assert tokens.token() == "opaque"
        else:
            with pytest.raises(Unreachable, match=r"returns no token \(HTTP 503\)"):
                tokens.token()
        assert len(endpoint.seen) > 1 + valid, "it is asked again"


def test_a_token_that_expires_before_the_next_attempt_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0

    def post(_: TokenSource) -> dict[str, object]:
        if now > 1000.0:
            raise TimeoutError("timed out")
        return {"access_token": "opaque", "expires_in": 200}

    monkeypatch.setattr(TokenSource, "_post", post)
    login = OAuthLogin(url="http://idp", retry_backoff_s=0.0, retry_backoff_s_max=10.0)
    tokens = TokenSource(login, "cluster A", clock=lambda: now)
    assert tokens.token() == "opaque"
    now = tokens._refresh_at = 1199.0
    assert tokens.token() == "opaque"
    now = 1201.0
    with pytest.raises(Unreachable, match="timed out"):
        tokens.token()


def test_an_error_of_the_system_in_a_login_keeps_its_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = tmp_path / "token"

    def broken(_: object) -> str:
        return missing.read_text()

    with _broker_and_connections() as (connections, _):
        monkeypatch.setattr(TokenSource, "token", broken)
        with pytest.raises(Unreachable, match="FileNotFoundError: No such file") as caught:
            connections.any_connection()
        assert str(missing) in str(caught.value)
        late = OSError(SECRET)
        monkeypatch.setattr(TokenSource, "token", lambda _: (_ for _ in ()).throw(late))
        with pytest.raises(Unreachable, match=r"login failed \(OSError\)") as caught:
            connections.any_connection()
    assert SECRET not in str(caught.value)


@contextmanager
def _broker_and_connections() -> Iterator[tuple[ClusterConnections, FakeBroker]]:
    """A broker that offers OAUTHBEARER, and a client that logs in with a token of an endpoint."""
    offered = SaslHandshakeResponse(error_code=0, mechanisms=["OAUTHBEARER"])
    broker = FakeBroker(lambda *_: offered, {3: (0, 9), 17: (0, 1), 36: (0, 2)})
    properties = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": HANDLER,
        "sasl.oauthbearer.token.endpoint.url": "http://idp",
        "sasl.jaas.config": f'{MODULE} required clientId="a" clientSecret="{SECRET}";',
    }
    client = ClusterClient(
        "A", (broker.address,), "test", security_protocol="SASL_PLAINTEXT", properties=properties
    )
    connections = ClusterConnections(client)
    try:
        yield connections, broker
    finally:
        connections.close()
        broker.stop()


def test_a_login_that_fails_in_code_of_others_is_an_error_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever connects expects no other one. Its text may hold a secret."""

    def broken(_: TokenSource) -> str:
        raise LookupError(SECRET)

    monkeypatch.setattr(TokenSource, "token", broken)
    with _broker_and_connections() as (connections, broker):
        with pytest.raises(ClusterError, match="the OAUTHBEARER login failed") as caught:
            connections.any_connection()
        monkeypatch.setattr(TokenSource, "token", lambda _: "x" if 1 / 0 else "")
        with pytest.raises(ClusterError, match="ZeroDivisionError"):
            connections.any_connection()
        fault = Defect("this program is wrong")
        monkeypatch.setattr(TokenSource, "token", lambda _: (_ for _ in ()).throw(fault))
        with pytest.raises(Defect):
            connections.any_connection()
    assert "LookupError" in str(caught.value)
    assert f"cluster A, {broker.address}" in str(caught.value)
    assert "in broken" in caplog.text
    assert SECRET not in caplog.text + str(caught.value)


def test_a_truststore_of_the_endpoint_that_changes_is_read_again(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    trust = tmp_path / "trust.pem"
    trust.write_text(old.pem())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(old.certify("idp", "127.0.0.1").pem_file(tmp_path / "idp.pem"))
    with serve(tls) as endpoint:
        properties = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": HANDLER,
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "sasl.jaas.config": f'{MODULE} required clientId="a" clientSecret="{SECRET}" '
            f'ssl.truststore.location="{trust}" ssl.truststore.type="PEM";',
        }
        client = ClusterClient(
            "A", ("a:1",), "test", security_protocol="SASL_PLAINTEXT", properties=properties
        )
        login = Login(client)
        assert b"Bearer opaque" in login.mechanism("a").auth_bytes()
        # The endpoint's next certificate is of another authority, whom the store names as well.
        tls.load_cert_chain(new.certify("idp", "127.0.0.1").pem_file(tmp_path / "idp.pem"))
        trust.write_text(old.pem() + new.pem())
        endpoint.body = b'{"access_token": "renewed"}'
        assert login._tokens is not None
        login._tokens._refresh_at = 0.0  # as if most of the lifetime were over
        assert b"Bearer renewed" in login.mechanism("a").auth_bytes()


def test_a_truststore_that_cannot_be_read_leaves_the_token_that_is_valid() -> None:
    broken = False

    def trust() -> ssl.SSLContext | None:
        if broken:
            raise ConfigError("the truststore cannot be read.", where="cluster A", do="Check it.")
        return None

    with serve() as endpoint:
        login = OAuthLogin(url=endpoint.url, client_id="mirror", client_secret=SECRET)
        tokens = TokenSource(login, "cluster A", tls=trust)
        assert tokens.token() == "opaque"
        broken, tokens._refresh_at = True, 0.0
        assert tokens.token() == "opaque"
        with pytest.raises(Denied, match="the truststore cannot be read") as caught:
            TokenSource(login, "cluster A", tls=trust).token()
        assert (caught.value.where, caught.value.do) == ("cluster A", "Check it.")
        assert len(endpoint.seen) == 1


def test_who_has_a_valid_token_waits_for_no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs keeps one login, and the next one only after a pause."""
    now_s, ask, asked = 1_000.0, threading.Event(), threading.Semaphore(0)
    answers: list[dict[str, object]] = [{"access_token": "old", "expires_in": 200}]
    requests: list[float] = []

    def post(_: TokenSource) -> dict[str, object]:
        nonlocal now_s
        requests.append(now_s)
        if answers:
            return answers.pop()
        asked.release()
        assert ask.wait(10)
        now_s += 10.0  # the read timeout
        raise TimeoutError("timed out")

    monkeypatch.setattr(TokenSource, "_post", post)
    login = OAuthLogin(url="http://idp", retry_backoff_s=0.0, retry_backoff_s_max=5.0)
    tokens = TokenSource(login, "cluster A", clock=lambda: now_s)
    assert tokens.token() == "old"
    now_s += 170.0
    tokens._refresh_at = now_s
    got: list[str] = []
    first = threading.Thread(target=lambda: got.append(tokens.token()))
    first.start()
    assert asked.acquire(timeout=10)
    assert [tokens.token() for _ in range(3)] == ["old"] * 3
    assert got == []
    ask.set()
    first.join(10)
    assert (got, len(requests)) == (["old"], 2)
    # The pause begins when the attempt has ended.
    for later_s, count in ((0.0, 2), (4.9, 2), (0.2, 3)):
        now_s += later_s
        assert tokens.token() == "old"
        assert len(requests) == count
    # One that is no longer valid helps nobody.
    now_s += 200.0
    with pytest.raises(Unreachable):
        tokens.token()


def test_who_has_no_token_waits_for_the_one_that_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def post(_: TokenSource) -> dict[str, object]:
        requests.append(1)
        begun.set()
        assert go.wait(10)
        return {"access_token": "new", "expires_in": 100}

    monkeypatch.setattr(TokenSource, "_post", post)
    tokens = source("http://idp")
    got: list[str] = []
    waiting = [threading.Thread(target=lambda: got.append(tokens.token())) for _ in range(3)]
    for one in waiting:
        one.start()
    assert begun.wait(10)
    go.set()
    for one in waiting:
        one.join(10)
    assert (got, requests) == (["new"] * 3, [1])


BUSY = urllib.error.HTTPError("http://idp", 503, "busy", Message(), None)


@pytest.mark.parametrize("error", [BUSY, urllib.error.URLError("refused")])
def test_without_a_pause_a_request_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As in Java, where a pause of 0 ms ends the attempts."""
    asked = []

    def post(one: TokenSource) -> dict[str, object]:
        asked.append(one)
        raise error

    monkeypatch.setattr(TokenSource, "_post", post)
    login = OAuthLogin(url="http://idp", retry_backoff_s=0.0, retry_backoff_s_max=0.05)
    with pytest.raises(Unreachable):
        TokenSource(login, "cluster A").token()
    assert len(asked) == 1


def test_timeouts_of_zero_are_none() -> None:
    """As in Java."""
    with serve() as endpoint:
        login = OAuthLogin(
            url=endpoint.url,
            client_id="mirror",
            client_secret=SECRET,
            connect_timeout_s=0.0,
            read_timeout_s=0.0,
        )
        assert TokenSource(login, "cluster A").token() == "opaque"


def mm2(path: Path, *lines: str) -> tuple[str, ...]:
    path.write_text(
        "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
        + "".join(f"{line}\n" for line in lines)
    )
    return load_mm2(path).warnings


def oauth(url: str, alias: str = "A.") -> tuple[str, ...]:
    return (
        f"{alias}security.protocol=SASL_SSL",
        f"{alias}sasl.mechanism=OAUTHBEARER",
        f"{alias}sasl.login.callback.handler.class={HANDLER}",
        f"{alias}sasl.oauthbearer.token.endpoint.url={url}",
        f'{alias}sasl.jaas.config={MODULE} required clientId="a" clientSecret="{SECRET}";',
    )


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://idp.example/token", True),
        ("http://localhost.example:80/token", True),
        ("http://10.0.0.1/token", True),
        ("https://idp.example/token", False),
        ("http://localhost:8080/token", False),
        ("http://127.0.0.1/token", False),
        ("http://[::1]:80/token", False),
        ("file:///run/token", False),
    ],
)
def test_a_token_endpoint_without_tls_is_warned_of(tmp_path: Path, url: str, warns: bool) -> None:
    told = [line for line in mm2(tmp_path / "m", *oauth(url)) if "token.endpoint.url" in line]
    assert len(told) == warns
    if warns:
        assert "cluster A" in told[0]
        assert "https" in told[0]
        assert SECRET not in told[0]


def plain(servers: str, protocol: str, mechanism: str) -> tuple[str, ...]:
    name = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"org.apache.kafka.common.security.{name}LoginModule"
    return (
        f"A.bootstrap.servers={servers}",
        f"A.security.protocol={protocol}",
        f"A.sasl.mechanism={mechanism}",
        f'A.sasl.jaas.config={module} required username="a" password="{SECRET}";',
    )


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (plain("kafka.example:9092", "SASL_PLAINTEXT", "PLAIN"), "the password"),
        (plain("localhost:9092,10.0.0.1:9092", "SASL_PLAINTEXT", "PLAIN"), "the password"),
        (plain("localhost:9092,[::1]:9092,127.0.0.2:1", "SASL_PLAINTEXT", "PLAIN"), ""),
        (plain("kafka.example:9092", "SASL_SSL", "PLAIN"), ""),
        (plain("kafka.example:9092", "SASL_PLAINTEXT", "SCRAM-SHA-256"), ""),
        ((*oauth("https://idp"), "A.security.protocol=SASL_PLAINTEXT"), "the token"),
        (oauth("https://idp"), ""),
        (
            (
                "A.security.protocol=SASL_PLAINTEXT",
                "A.sasl.mechanism=OAUTHBEARER",
                f'A.sasl.jaas.config={MODULE} required unsecuredLoginStringClaim_sub="a";',
            ),
            "",  # anybody can make such a token
        ),
    ],
)
def test_a_login_that_shows_its_secret_is_warned_of(
    tmp_path: Path, lines: tuple[str, ...], what: str
) -> None:
    told = [line for line in mm2(tmp_path / "m", *lines) if "SASL_PLAINTEXT" in line]
    assert len(told) == bool(what)
    if told:
        assert f"cluster A: others on the network can read {what}" in told[0]
        assert "use SASL_SSL" in told[0]
        assert SECRET not in told[0]


def test_a_missing_check_of_the_host_name_is_warned_of(tmp_path: Path) -> None:
    key = "ssl.endpoint.identification.algorithm"
    told = mm2(tmp_path / "m", "A.security.protocol=SSL", f"{key}=")
    (line,) = [line for line in told if f"{key} is empty" in line]
    assert "cluster A" in line
    assert "cluster B" not in line  # it has no TLS
    assert f"{key}=https" in line
    assert not [line for line in mm2(tmp_path / "m", "A.security.protocol=SSL") if key in line]
    assert not [line for line in mm2(tmp_path / "m", f"{key}=") if f"{key} is empty" in line]


def test_mirrormaker_1_warns_as_well(tmp_path: Path) -> None:
    consumer, producer = tmp_path / "c", tmp_path / "p"
    consumer.write_text(
        "bootstrap.servers=a:1\ngroup.id=g\n"
        + "".join(f"{line}\n" for line in oauth("http://idp.example/t", ""))
        + "ssl.endpoint.identification.algorithm=\n"
    )
    producer.write_text("bootstrap.servers=b:1\n")
    told = " ".join(load_mm1(consumer, producer, include=".*").warnings)
    assert "token.endpoint.url" in told
    assert "ssl.endpoint.identification.algorithm" in told
