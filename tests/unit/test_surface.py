"""The metrics server: who may look, what others cannot do to it."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Gauge

from sparkmirror.errors import ConfigError, MachineError
from sparkmirror.model import MetricsSettings
from sparkmirror.observe.address import resolve
from sparkmirror.observe.health import Health
from sparkmirror.observe.server import Surface, open_surface
from tests.certificates import Authority, Certified
from tests.unit.config_files import BASE, load, refused

TOKEN = "a-token-of-some-length"
Open = Callable[..., Surface]


@pytest.fixture
def surface() -> Iterator[Open]:
    opened: list[Surface] = []

    def start(health: Health | None = None, **settings: str) -> Surface:
        registry = CollectorRegistry()
        Gauge("answer", "It is.", registry=registry).set(42)
        Gauge("filler", "x" * 2_000, registry=registry).set(1)
        settings.setdefault("listen", "127.0.0.1:0")
        found = health or Health(True, True, {"flows": ["A->B"]})
        opened.append(open_surface(MetricsSettings(**settings), registry, lambda: found))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def get(
    surface: Surface,
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
    assert get(one, "/")[0] == 404
    assert get(one, "/../etc/passwd")[0] == 404
    assert get(one, method="POST")[0] == 501


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


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listen": "0.0.0.0:0"}, "everybody"),
        ({"listen": "[::]:0"}, "everybody"),
        ({"listen": "0.0.0.0:0", "token": TOKEN}, "everybody"),
        ({"listen": "0.0.0.0:0", "tls_cert": "c", "tls_key": "k"}, "everybody"),
        ({"listen": "0.0.0.0:0", "tls_cert": "c", "tls_key": "k", "token": TOKEN}, "cannot be"),
        ({"listen": "127.0.0.1:0", "token": "short"}, "fewer than"),
        ({"listen": "127.0.0.1:0", "token_file": "/nowhere"}, "cannot be read"),
        ({"listen": "127.0.0.1"}, "no address"),
        ({"listen": ":9404"}, "no address"),
        ({"listen": "127.0.0.1:99999"}, "no address"),
        ({"listen": "127.0.0.1:http"}, "no address"),
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


def test_clients_that_say_nothing_cost_a_few_threads(surface: Open) -> None:
    one = surface()
    place = urlsplit(one.url)
    idle = [socket.create_connection((place.hostname, place.port)) for _ in range(40)]
    try:
        # At most eight of them are waited for, the others are hung up on.
        deadline = time.monotonic() + 10
        gone = 0
        while gone < 32 and time.monotonic() < deadline:
            gone = 0
            for sock in idle:
                sock.settimeout(0.01)
                try:
                    gone += sock.recv(1) == b""
                except TimeoutError:
                    continue
                except ConnectionError:
                    gone += 1
        assert gone == 32
    finally:
        for sock in idle:
            sock.close()
    deadline = time.monotonic() + 10
    while True:  # those eight notice that their clients are gone
        try:
            assert get(one)[0] == 200
            break
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline


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
        except ConnectionError:
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
