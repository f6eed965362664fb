"""Jars from the cache, and what is said when they cannot be had."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cache import cache_directory, locked
from sparkmirror.errors import MachineError
from sparkmirror.testing import maven, pins
from sparkmirror.testing.jvm import KAFKA_VERSION
from sparkmirror.testing.maven import (
    Fetching,
    _direct_options,
    _login,
    _proxies,
    _proxy_options,
    _Reader,
    resolve,
)
from sparkmirror.testing.probe import free_ports, port_is_free

LOGGER = "org.slf4j:slf4j-simple:1.7.36"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("text", ["kafka", "a:b", "a:b:1@pom", "a:b:1 2", "a:b:../x"])
def test_no_coordinate(text: str) -> None:
    with pytest.raises(MachineError, match="not a Maven coordinate") as caught:
        resolve(text)
    assert caught.value.where == text


def test_without_network_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy that nobody listens at: for Ivy there is no way out.
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(MachineError, match="cannot be downloaded") as caught:
        resolve("org.slf4j:slf4j-simple:1.7.36")
    assert "Connection refused" in caught.value.what
    assert "HTTPS_PROXY" in caught.value.do
    assert not list((cache_directory() / "maven" / "resolved").iterdir())


def test_progress_follows_the_log() -> None:
    seen: list[Fetching] = []
    reader = _Reader(seen.append)
    for line in [
        "\tfound org.a#one;1.0 in central\n",
        "\tfound org.a#two;2.0 in central\n",
        "downloading https://repository/org/a/one/1.0/one-1.0.jar ...\n",
        "..... (60kB)\n",
        ".. (0kB)\n",
        "\t[SUCCESSFUL ] org.a#one;1.0!one.jar (182ms)\n",
    ]:
        reader.read(line)
    assert seen == [
        Fetching("resolve", "one", 1, 0, 0),
        Fetching("resolve", "two", 2, 0, 0),
        Fetching("download", "one-1.0.jar", 0, 2, 0),
        Fetching("download", "one-1.0.jar", 1, 2, 61440),
    ]


def test_proxy_variables_become_jvm_options() -> None:
    proxies = _proxies({"HTTPS_PROXY": "http://proxy:8080", "http_proxy": "other"})
    assert _proxy_options(proxies) == [
        *("-Dhttp.proxyHost=other", "-Dhttp.proxyPort=3128"),
        *("-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=8080"),
    ]
    assert _login(proxies) == ""
    assert _proxies({}) == []


@pytest.mark.parametrize(
    ("value", "hosts"),
    [
        ("repo.example", "repo.example|*.repo.example"),
        (".Example , *.corp,localhost", "Example|*.Example|*.corp|corp|*.localhost"),
        ("repo:8443 10.1.2.3:80", "repo|*.repo|10.1.2.3"),
        ("*", "*"),
        ("10.0.0.0/8,172.16.0.0/16,192.168.7.0/24", "10.*|172.16.*|192.168.7.*"),
        ("172.16.0.0/12", "|".join(f"172.{number}.*" for number in range(16, 32))),
        ("10.1.2.0/30", "10.1.2.0|10.1.2.1|10.1.2.2|10.1.2.3"),
        ("10.1.2.3/33,,", ""),
        ("0.0.0.0/0", "|".join(f"{number}.*" for number in range(256))),
        ("::1,[fe80::1]:80,fe80::/10", "[fe80::1]"),
    ],
)
def test_hosts_without_a_proxy_are_told_to_java(value: str, hosts: str) -> None:
    own = "-Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    for name in ("no_proxy", "NO_PROXY"):
        (option,) = _direct_options({name: value})
        assert option.startswith(own)
        wanted = {*own.split("|"), *hosts.split("|")} - {""}
        assert sorted(option.split("|")) == sorted(wanted)  # each once
    assert _direct_options({"no_proxy": "first", "NO_PROXY": "second"}) == [f"{own}|first|*.first"]
    assert _direct_options({}) == []


def test_ivy_is_told_which_hosts_have_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *_: object) -> list[str]:
        commands.append(command)
        return ["not found"]

    monkeypatch.setattr(maven, "_run", run)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("NO_PROXY", "repo.example")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(MachineError):
        resolve(LOGGER)
    (command,) = commands
    told = "-Dhttp.nonProxyHosts=localhost|127.*|[::1]|repo.example|*.repo.example"
    assert command.index(told) < command.index("-jar")


@pytest.mark.parametrize(
    "value",
    ["http://proxy:port", "http://me:s3cret@proxy:99999", "http://me:s3/cret@proxy:3128",
     "http://[me:s3cret@proxy", "http://me:s3cret@:3128", "socks5h://me:s3cret@proxy:1080"],
)  # fmt: skip
def test_a_variable_that_holds_no_address_of_a_proxy_is_named_without_its_value(value: str) -> None:
    with pytest.raises(MachineError, match="not hold the address of an HTTP proxy") as caught:
        _proxies({"https_proxy": value})
    assert caught.value.where == "https_proxy"
    assert "s3" not in "".join(traceback.format_exception(caught.value)).replace(value, "")
    assert "socksProxyHost" in caught.value.do


class _Proxy:
    """A proxy that tunnels to nowhere, and that only for who has the login."""

    def __init__(self, login: str) -> None:
        self._wanted = base64.b64encode(login.encode())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                peer, _ = self._listener.accept()
                with peer, peer.makefile("rb") as stream:
                    lines = [line.strip() for line in iter(stream.readline, b"\r\n")]
                    peer.sendall(self._answer(lines) + b"\r\nContent-Length: 0\r\n\r\n")

    def _answer(self, lines: list[bytes]) -> bytes:
        pairs = (line.split(b": ", 1) for line in lines[1:])
        headers = {name.lower(): value for name, value in pairs}
        if headers.get(b"proxy-authorization") != b"Basic " + self._wanted:
            return b'HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic realm="here"'
        self.accepted.append(lines[0])
        return b"HTTP/1.1 403 Not there"

    def close(self) -> None:
        # Nobody else ends the accept of the other thread.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy() -> Iterator[_Proxy]:
    found = _Proxy('me:s3\\c"r/t %')
    yield found
    found.close()


@pytest.mark.parametrize(
    ("login", "told"),
    [("", "the proxy wants a login"), ("me:s3cret@", "the proxy wants another login")],
)
def test_a_proxy_that_wants_a_login_is_named_without_the_password(
    proxy: _Proxy, monkeypatch: pytest.MonkeyPatch, login: str, told: str
) -> None:
    monkeypatch.setenv("https_proxy", f"http://{login}127.0.0.1:{proxy.port}")
    with pytest.raises(MachineError, match=told) as caught:
        resolve(LOGGER)
    assert caught.value.where == "https_proxy"
    assert "http://user:password@host:port" in caught.value.do
    assert "s3cret" not in str(caught.value)
    assert proxy.accepted == []


def test_a_proxy_gets_the_login_and_nobody_else_sees_it(
    proxy: _Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        commands.append(command)
        return popen(command, **options)

    monkeypatch.setattr(maven.subprocess, "Popen", start)
    monkeypatch.setenv("https_proxy", f"http://me:s3%5Cc%22r%2Ft%20%25@127.0.0.1:{proxy.port}")
    with pytest.raises(MachineError, match=r"cannot be downloaded: .*403") as caught:
        resolve(LOGGER)
    assert set(proxy.accepted) == {b"CONNECT repo1.maven.org:443 HTTP/1.1"}
    assert "s3" not in f"{caught.value}{commands}"
    assert not [path for path in cache_directory().rglob("*") if "s3" in path.name]


def test_the_lock_excludes_another_process_and_ends_with_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom sparkmirror.cache import locked\n"
        "with locked(Path(sys.argv[1]), timeout_s=5):\n"
        "    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(MachineError, match="held this lock"), locked(lock, timeout_s=0.3):
            pytest.fail("two held it")
        other.kill()
    with locked(lock, timeout_s=5):
        assert lock.exists()


def test_free_ports_are_free_and_different() -> None:
    ports = free_ports(6)
    assert len(set(ports)) == 6
    assert all(port_is_free(port) for port in ports)
    assert all(20_000 <= port < 30_000 for port in ports)


# --- hashes ---------------------------------------------------------------------------------------


def listed(monkeypatch: pytest.MonkeyPatch, coordinate: str, *jars: Path) -> None:
    """As if ``jars`` had just been downloaded for ``coordinate``."""
    monkeypatch.setattr(maven, "_fetch", lambda *_, **__: jars)
    monkeypatch.setattr(maven, "find_java", lambda: None)
    assert not (cache_directory() / "maven" / "resolved").exists(), coordinate


def test_a_jar_that_was_changed_is_refused_and_fetched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "slf4j-simple-1.7.36.jar"
    jar.write_bytes(b"PK: something else")
    listed(monkeypatch, LOGGER, jar)
    with pytest.raises(MachineError, match=r"slf4j-simple-1\.7\.36\.jar is not the file") as caught:
        resolve(LOGGER)
    assert hashlib.sha256(b"PK: something else").hexdigest() in caught.value.what
    assert caught.value.where == str(jar)
    assert not jar.exists()
    assert not list((cache_directory() / "maven" / "resolved").iterdir())


def test_a_jar_that_an_earlier_version_left_in_the_cache_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "slf4j-simple-1.7.36.jar"
    jar.write_bytes(b"as it was")
    pin = hashlib.sha256(b"as it was").hexdigest()
    monkeypatch.setattr(pins, "_pins", lambda: {jar.name: {pin}})
    listed(monkeypatch, LOGGER, jar)
    assert resolve(LOGGER) == (jar,)
    (mark,) = (p for p in (cache_directory() / "maven/resolved").iterdir() if p.suffix != ".txt")
    jar.write_bytes(b"changed")
    assert resolve(LOGGER) == (jar,)  # it was verified: nothing is read again
    mark.unlink()
    with pytest.raises(MachineError, match="is not the file"):
        resolve(LOGGER)


def test_a_repository_cannot_add_a_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar, more = tmp_path / "slf4j-simple-1.7.36.jar", tmp_path / "evil-1.0.jar"
    for one in (jar, more):
        one.write_bytes(b"as it was")
    pin = hashlib.sha256(b"as it was").hexdigest()
    monkeypatch.setattr(pins, "_pins", lambda: {jar.name: {pin}})
    listed(monkeypatch, LOGGER, jar, more)
    with pytest.raises(MachineError, match=r"do not belong to it: evil-1\.0\.jar"):
        resolve(LOGGER)


def test_a_version_that_nobody_pinned_is_used_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jar = tmp_path / "slf4j-simple-1.7.12.jar"
    jar.write_bytes(b"any")
    listed(monkeypatch, "org.slf4j:slf4j-simple:1.7.12", jar)
    assert resolve("org.slf4j:slf4j-simple:1.7.12") == (jar,)
    assert "no hash is known of slf4j-simple-1.7.12.jar" in caplog.text


def test_every_jar_that_the_project_names_has_a_hash() -> None:
    root = Path(__file__).parents[3]
    named: set[str] = {f"kafka_2.13-{KAFKA_VERSION}.jar", f"kafka-tools-{KAFKA_VERSION}.jar"}
    for path in (
        *root.glob("src/**/*.py"),
        *root.glob("tests/kafka/**/*.py"),
        *root.glob("benchmarks/*.py"),
    ):
        text = path.read_text("utf-8")
        for _, artifact, version in re.findall(r"\"(org\.[\w.]+):([\w.-]+):(\d[\w.]*)", text):
            named.add(f"{artifact}-{version}.jar")
        for version in re.findall(r"[( ]version=\"(\d+\.\d+\.\d+)\"", text):
            scala = "2.13" if tuple(map(int, version.split(".")[:2])) >= (2, 4) else "2.12"
            named |= {f"kafka_{scala}-{version}.jar", f"kafka-tools-{version}.jar"}
    assert {"slf4j-simple-1.7.36.jar", "kafka_2.13-2.8.2.jar", "kafka_2.12-2.3.1.jar"} <= named
    assert not named - pins._pins().keys()
