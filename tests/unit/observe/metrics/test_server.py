"""The metrics server: who may look, what others cannot do to it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Gauge

from sparkmirror.errors import ConfigError, MachineError
from sparkmirror.observe.metrics import server
from sparkmirror.observe.metrics.address import resolve
from sparkmirror.observe.metrics.health import Health
from sparkmirror.observe.metrics.server import MetricsServer, _Handler, open_metrics_server
from sparkmirror.settings import MetricsSettings
from tests.certificates import Authority, Certified
from tests.unit.config_files import BASE, load, refused

TOKEN = "a-token-of-some-length"
Open = Callable[..., MetricsServer]


@pytest.fixture
def surface() -> Iterator[Open]:
    opened: list[MetricsServer] = []

    def start(health: Health | None = None, **settings: str) -> MetricsServer:
        registry = CollectorRegistry()
        Gauge("answer", "It is.", registry=registry).set(42)
        Gauge("filler", "x" * 2_000, registry=registry).set(1)
        settings.setdefault("listen", "127.0.0.1:0")
        found = health or Health(True, True, {"flows": ["A->B"]})
        opened.append(open_metrics_server(MetricsSettings(**settings), registry, lambda: found))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def get(
    surface: MetricsServer,
    path: str = "/metrics",
    *,
    method: str = "GET",
    token: str = "",
    tls: ssl.SSLContext | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    place = urlsplit(surface.url)
    assert place.hostname is not None
    client: http.client.HTTPConnection
    if tls is None:
        client = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    else:
        client = http.client.HTTPSConnection(place.hostname, place.port, timeout=10, context=tls)
    sent = dict(headers or {})
    if token:
        sent["Authorization"] = f"Bearer {token}"
    try:
        client.request(method, path, headers=sent)
        answer = client.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        client.close()


# --- pages --------------------------------------------------------------------------------------


def test_the_pages(surface: Open) -> None:
    one = surface()
    code, headers, body = get(one)
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b"answer 42.0\n" in body
    assert get(one, "/metrics/?x=1")[2] == body
    assert headers["Server"] == "sparkmirror"  # and not which Python
    code, headers, packed = get(one, headers={"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed) == body
    assert get(one, headers={"Accept": "application/openmetrics-text; version=1.0.0"})[2].endswith(
        b"# EOF\n"
    )
    assert get(one, method="HEAD")[::2] == (200, b"")
    assert json.loads(get(one, "/health")[2]) == {"live": True, "ready": True, "flows": ["A->B"]}
    assert get(one, "/health/live")[::2] == (200, b"live\n")
    assert get(one, "/health/ready")[::2] == (200, b"ready\n")
    code, _, index = get(one, "/")
    assert code == 200
    for line in index.decode().splitlines():
        assert get(one, line.split()[0])[0] == 200, line
    assert set(_Handler._PAGES) - {""} == {line.split()[0] for line in index.decode().splitlines()}
    assert get(one, "/none")[0] == 404
    assert get(one, "/../etc/passwd")[0] == 404
    assert get(one, method="POST")[0] == 501


@pytest.mark.parametrize("version", ["abc", "1.x.0", "1..0", ""])
@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_a_format_that_nobody_knows_is_answered_in_plain_text(
    surface: Open, kind: str, version: str
) -> None:
    code, headers, body = get(surface(), headers={"Accept": f"{kind};version={version}"})
    assert code == 200
    assert b"answer 42.0\n" in body
    if version:
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_what_is_not_well_is_told_by_code_and_word(surface: Open) -> None:
    one = surface(Health(False, False))
    assert get(one, "/health")[0] == 503
    assert get(one, "/health/live")[::2] == (503, b"not live\n")
    assert get(one, "/health/ready")[::2] == (503, b"not ready\n")
    assert get(one)[0] == 200  # metrics are there to see why


# --- who may look -------------------------------------------------------------------------------


def test_a_token_guards_all_but_the_probes(surface: Open, tmp_path: Path) -> None:
    one = surface(token=TOKEN)
    for path in ("/metrics", "/health"):
        for wrong in ("", "another-token-of-some-length", TOKEN[:-1], f"{TOKEN}x"):
            code, headers, body = get(one, path, token=wrong)
            assert code == 401
            assert headers["WWW-Authenticate"] == "Bearer"
            assert b"answer" not in body
        assert get(one, path, headers={"Authorization": f"Basic {TOKEN}"})[0] == 401
        assert get(one, path, headers={"Authorization": "Bearer \xff\xfe"})[0] == 401
        assert get(one, path, token=TOKEN)[0] == 200
    assert get(one, "/health/ready")[::2] == (200, b"ready\n")


def test_a_token_may_have_spaces_in_it(surface: Open) -> None:
    one = surface(token=f"{TOKEN} of words")
    assert get(one, token=f"{TOKEN} of words")[0] == 200
    assert get(one, token=TOKEN)[0] == 401


def test_a_token_file_can_be_replaced(surface: Open, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    one = surface(token_file=str(file))
    assert get(one, token=TOKEN)[0] == 200
    file.write_text("the-next-token-of-some-length\n")
    assert get(one, token=TOKEN)[0] == 401
    assert get(one, token="the-next-token-of-some-length")[0] == 200
    file.write_text("")  # never "no token asked for"
    assert get(one)[0] == 401
    assert get(one, token="the-next-token-of-some-length")[0] == 401
    file.unlink()
    assert get(one)[0] == 401


def files(directory: Path, certified: Certified) -> dict[str, str]:
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_text(certified.chain_pem())
    key.write_text(certified.key_pem())
    return {"tls_cert": str(cert), "tls_key": str(key)}


def trust(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as curl does
    return context


def test_tls_and_a_renewed_certificate(surface: Open, tmp_path: Path) -> None:
    authority = Authority()
    paths = files(tmp_path, authority.certify("mirror", "127.0.0.1"))
    one = surface(token=TOKEN, listen="0.0.0.0:0", **paths)
    assert one.url.startswith("https://0.0.0.0:")
    one.url = one.url.replace("0.0.0.0", "127.0.0.1")
    trusting = trust(authority)
    assert get(one, token=TOKEN, tls=trusting)[0] == 200
    assert get(one, tls=trusting)[0] == 401
    with pytest.raises((http.client.HTTPException, OSError)):
        get(one, token=TOKEN)  # not without TLS
    with pytest.raises(ssl.SSLError):
        get(one, token=TOKEN, tls=ssl.create_default_context())

    other = Authority("The next one")
    files(tmp_path, other.certify("mirror", "127.0.0.1"))
    for path in paths.values():
        os.utime(path, (time.time() + 5, time.time() + 5))
    renewed = trust(other)
    assert get(one, token=TOKEN, tls=renewed)[0] == 200
    (tmp_path / "tls.crt").write_text("damaged")
    assert get(one, token=TOKEN, tls=renewed)[0] == 200  # goes on with the former one


def test_a_new_certificate_waits_for_its_key(surface: Open, tmp_path: Path) -> None:
    """Whoever renews both writes one file first."""
    former, other = Authority(), Authority("The next one")
    paths = files(tmp_path, former.certify("mirror", "127.0.0.1"))
    one = surface(**paths)
    certified = other.certify("mirror", "127.0.0.1")
    (tmp_path / "tls.crt").write_text(certified.chain_pem())
    os.utime(tmp_path / "tls.crt", (time.time() + 5, time.time() + 5))
    for _ in range(2):
        assert get(one, tls=trust(former))[0] == 200
    (tmp_path / "tls.key").write_text(certified.key_pem())
    os.utime(tmp_path / "tls.key", (time.time() + 5, time.time() + 5))
    assert get(one, tls=trust(other))[0] == 200


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listen": "0.0.0.0:0"}, "anybody"),
        ({"listen": "[::]:0"}, "anybody"),
        ({"listen": "0.0.0.0:0", "token": TOKEN}, "anybody"),
        ({"listen": "0.0.0.0:0", "tls_cert": "c", "tls_key": "k"}, "anybody"),
        ({"listen": "0.0.0.0:0", "tls_cert": "c", "tls_key": "k", "token": TOKEN}, "cannot be"),
        ({"listen": "127.0.0.1:0", "token": "short"}, "fewer than"),
        ({"listen": "127.0.0.1:0", "token": f"{TOKEN}-\u00fc"}, "cannot carry"),
        ({"listen": "127.0.0.1:0", "token": f"{TOKEN}\x7f"}, "cannot carry"),
        ({"listen": "127.0.0.1:0", "token": f"{TOKEN}\n{TOKEN}"}, "cannot carry"),
        ({"listen": "127.0.0.1:0", "token": f"{TOKEN} "}, "cannot carry"),
        ({"listen": "127.0.0.1:0", "token_file": "/nowhere"}, "cannot be read"),
        ({"listen": "127.0.0.1"}, "not an address"),
        ({"listen": ":9404"}, "not an address"),
        ({"listen": "127.0.0.1:99999"}, "not an address"),
        ({"listen": "127.0.0.1:http"}, "not an address"),
        ({"listen": "no-such-host.invalid:0"}, "cannot be found"),
        ({"listen": "127.0.0.1:0", "tls_cert": "c", "tls_key": "k"}, "cannot be used"),
    ],
)
def test_what_is_refused(surface: Open, settings: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        surface(**settings, where="mm2.properties:7")
    assert caught.value.where == "mm2.properties:7"
    assert caught.value.do
    assert TOKEN not in str(caught.value)


def test_an_encrypted_key_is_refused_and_nobody_is_asked(surface: Open, tmp_path: Path) -> None:
    certified = Authority().certify("mirror")
    paths = files(tmp_path, certified)
    Path(paths["tls_key"]).write_text(certified.key_pem("secret"))
    with pytest.raises(ConfigError, match="cannot be used"):
        surface(**paths)


def test_a_port_that_is_taken(surface: Open) -> None:
    port = urlsplit(surface().url).port
    with pytest.raises(MachineError, match="cannot listen"):
        surface(listen=f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("text", "host", "loopback"),
    [
        ("9404", "127.0.0.1", True),
        ("127.0.0.1:9404", "127.0.0.1", True),
        ("localhost:9404", "", True),
        ("[::1]:9404", "::1", True),
        ("0.0.0.0:9404", "0.0.0.0", False),
        ("192.0.2.1:9404", "192.0.2.1", False),
    ],
)
def test_addresses(text: str, host: str, loopback: bool) -> None:
    address = resolve(text, "")
    assert address.port == 9404
    assert address.loopback is loopback
    assert not host or address.host == host


# --- what others cannot do to it ----------------------------------------------------------------


Connect = Callable[..., socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connections to a surface, closed in the end; what they said, if anything."""
    opened: list[socket.socket] = []

    def open_one(surface: MetricsServer, said: bytes = b"", host: str = "") -> socket.socket:
        place = urlsplit(surface.url)
        own = (host, 0) if host else None
        opened.append(
            socket.create_connection((place.hostname, place.port), timeout=30, source_address=own)
        )
        opened[-1].sendall(said)
        return opened[-1]

    yield open_one
    for sock in opened:
        sock.close()


def gone(sock: socket.socket) -> bool:
    """Whether the server has hung up on a client that asked for nothing."""
    sock.settimeout(0.01)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


SLOW = (b"", b"G", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nA: b\r\n")


@pytest.mark.parametrize("said", SLOW)
def test_slow_clients_do_not_keep_the_probes_from_an_answer(
    surface: Open, connect: Connect, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEAD_S_MAX", 3_600.0)  # their time does not end meanwhile
    one = surface()
    slow = [connect(one, said) for _ in range(100)]
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert get(one, path)[0] == 200
    # Not one for each of them: those that waited longest were hung up on.
    until(lambda: sum(map(gone, slow)) >= 60, "too many connections are kept")
    assert not gone(slow[-1])
    until(lambda: threading.active_count() < 60, "too many threads")


def test_a_handshake_and_a_head_have_one_time_limit(
    surface: Open, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEAD_S_MAX", 0.5)
    authority = Authority()
    plain = surface()
    secure = surface(**files(tmp_path, authority.certify("mirror", "127.0.0.1")))
    for one in (plain, secure):
        slow = connect(one)
        # A byte now and then stretches nothing.
        text = b"GET /metrics HTTP/1.1\r\n" if one is plain else b"\x16\x03\x01\x40\x00"
        ended = False
        deadline = time.monotonic() + 60
        while not ended and time.monotonic() < deadline:
            try:
                slow.sendall(text[:1] or b"A")
                text = text[1:]
                ended = gone(slow)
            except ConnectionError:
                ended = True
            time.sleep(0.05)
        assert ended
    monkeypatch.setattr(server, "_HEAD_S_MAX", 60.0)
    assert get(plain)[0] == 200
    assert get(secure, tls=trust(authority))[0] == 200


def test_one_address_does_not_have_all_connections(
    surface: Open, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEAD_S_MAX", 3_600.0)
    one = surface()
    quiet = connect(one, host="127.0.0.2")
    many = [connect(one, host="127.0.0.3") for _ in range(server._CONNECTIONS_MAX + 20)]
    kept = server._ADDRESS_CONNECTIONS_MAX
    until(lambda: sum(map(gone, many)) == len(many) - kept, "one address has too many")
    assert not gone(quiet)


def test_pages_that_nobody_takes_leave_room_for_the_probes(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    Gauge("filler", "x" * 20_000_000, registry=registry).set(1)
    one = open_metrics_server(
        MetricsSettings(listen="127.0.0.1:0"), registry, lambda: Health(True, True, {})
    )
    try:
        for _ in range(server._PAGES_MAX):
            # It has begun: a page that is asked for meanwhile would take its place.
            begun = connect(one, b"GET /metrics HTTP/1.1\r\n\r\n").recv(12)
            assert begun.endswith(b" 200")
        assert get(one, "/health")[::2] == (503, b"busy\n")
        assert get(one, "/health/live")[::2] == (200, b"live\n")
        assert get(one, "/health/ready")[::2] == (200, b"ready\n")
    finally:
        one.close()


def test_a_head_has_an_end(surface: Open, connect: Connect) -> None:
    one = surface()
    sock = connect(one, b"GET /metrics HTTP/1.1\r\n")
    with contextlib.suppress(OSError):
        for _ in range(90):
            sock.sendall(b"A: " + b"b" * 60_000 + b"\r\n")
        sock.sendall(b"\r\n")
    with contextlib.suppress(OSError):
        assert b"answer 42" not in b"".join(iter(lambda: sock.recv(65_536), b""))
    assert get(one)[0] == 200


def test_a_machine_without_threads_loses_nothing_for_good(
    surface: Open, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = surface()
    real = threading.Thread.start
    refused: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name == "sparkmirror-http" and len(refused) < 100:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(100):
        until(partial(gone, connect(one)), "a client waits for nothing")
    assert get(one)[0] == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 5_000,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
    ],
)
def test_nonsense_is_answered_or_hung_up_on(surface: Open, data: bytes) -> None:
    one = surface()
    place = urlsplit(one.url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: sock.recv(65_536), b""))
        except OSError:  # it has hung up; ENOTCONN, where we shut down after that, is one, too
            answer = b""
    assert b"answer 42" not in answer
    assert get(one)[0] == 200


# --- in the file --------------------------------------------------------------------------------


def test_the_file_says_where(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    text = BASE + (
        "config.providers=d\n"
        "config.providers.d.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider\n"
        "sparkmirror.metrics.listen=10.1.2.3:9404\n"
        "sparkmirror.metrics.labels=topic\n"
        "sparkmirror.metrics.tls.cert=/etc/tls.crt\n"
        "sparkmirror.metrics.tls.key=/etc/tls.key\n"
        f"sparkmirror.metrics.token=${{d:{tmp_path}:token}}\n"
    )
    settings = load(tmp_path, text)
    found = settings.metrics
    assert (found.listen, found.labels) == ("10.1.2.3:9404", "topic")
    assert (found.tls_cert, found.tls_key, found.token) == ("/etc/tls.crt", "/etc/tls.key", TOKEN)
    assert found.where == f"{tmp_path / 'mm2.properties'}:7"
    assert TOKEN not in repr(settings)
    assert load(tmp_path, BASE).metrics.listen == ""  # off


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("sparkmirror.metrics.tls.cert=/c\n", "tls.key is not"),
        ("sparkmirror.metrics.tls.key=/k\n", "tls.cert is not"),
        (
            f"sparkmirror.metrics.token={TOKEN}\nsparkmirror.metrics.token.file=/t\n",
            "both set",
        ),
        ("sparkmirror.metrics.labels=record\n", "none of the values|not one of the values"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, lines: str, says: str) -> None:
    error = refused(tmp_path, BASE + lines)
    assert re.search(says, str(error))
    assert TOKEN not in str(error)


def test_a_flow_has_no_port_of_its_own(tmp_path: Path) -> None:
    settings = load(tmp_path, BASE + "A->B.sparkmirror.metrics.listen=9404\n")
    assert settings.metrics.listen == ""
    assert any("sparkmirror.metrics.listen has no effect" in line for line in settings.warnings)
