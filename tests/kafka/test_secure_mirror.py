"""Whole mirrors over TLS and SASL; what they write and show holds no secret."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from sparkmirror.demo.probe import free_ports
from tests.certificates import PASSWORD, Authority
from tests.kafka.mirror_process import MirrorProcess, write_mm2
from tests.kafka.secure import SESSION_MS, USER_SECRET, Secured
from tests.kafka.support import Sent, create_topic, produce, wait_until_equal
from tests.kafka.token_endpoint import CLIENT_SECRET, token_endpoint


def _mirror(
    pair: tuple[Secured, Secured],
    source: dict[str, str],
    target: dict[str, str],
    listeners: tuple[str, str],
    directory: Path,
    *arguments: str,
    continuous_s: float = 0.0,
    look: Callable[[int], None] = lambda _: None,
    provided: bool = False,
) -> MirrorProcess:
    """One mirror of a new topic; ``look`` is called with its process id while it runs.

    ``provided``: the mirror's file refers to its secrets.
    """
    p, q = pair
    topic = f"secure-{uuid.uuid4().hex[:8]}"
    create_topic(p.kafka, topic, 2)
    records = [Sent(value=b"v" * 5_000, key=b"%d" % n, partition=n % 2) for n in range(500)]
    produce(p.kafka, topic, records)
    extra = {
        "A.bootstrap.servers": p.servers[listeners[0]],
        "B.bootstrap.servers": q.servers[listeners[1]],
        **{f"A.{key}": value for key, value in source.items()},
        **{f"B.{key}": value for key, value in target.items()},
    }
    if provided:
        extra = _provided(extra, directory / "secrets.properties")
    path = write_mm2(directory / "mm2.properties", p.kafka, q.kafka, topic, extra)
    command = ["run", str(path), "--work-dir", str(directory / "work"), "--log-format", "json"]
    if not continuous_s:
        command.append("--once")
    mirror = MirrorProcess(directory, [*command, *arguments], cold=bool(continuous_s))
    try:
        if continuous_s:
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}")
            end = time.monotonic() + continuous_s
            while time.monotonic() < end:
                produce(p.kafka, topic, records[:20])
                look(mirror.process.pid)
                time.sleep(0.5)
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}")
            assert mirror.drain()[0] == 0, mirror.text()
        else:
            assert mirror.wait() == 0, mirror.text()
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}", timeout_s=10)
    finally:
        mirror.kill()
    return mirror


def _provided(lines: dict[str, str], path: Path) -> dict[str, str]:
    """``lines`` with references in place of every value with a secret; those go to ``path``."""
    secrets = {
        key: value for key, value in lines.items() if any(secret in value for secret in PLANTED)
    }
    path.write_text("".join(f"{key} = {value}\n" for key, value in secrets.items()))
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    return {
        **lines,
        "config.providers": "file",
        "config.providers.file.class": provider,
        **{key: f"${{file:{path}:{key}}}" for key in secrets},
    }


PLANTED = (USER_SECRET, PASSWORD, CLIENT_SECRET)


def _look_at_processes(root: int) -> None:
    """No command line and no environment of the run holds a secret."""
    for each in _tree(root):
        try:
            line = " ".join(each.cmdline()) + " ".join(each.environ().values())
        except psutil.Error:
            continue
        for secret in PLANTED:
            assert secret not in line


def _tree(root: int) -> list[psutil.Process]:
    process = psutil.Process(root)
    return [process, *process.children(recursive=True)]


def _search(mirror: MirrorProcess, directory: Path, pair: tuple[Secured, Secured]) -> int:
    """Files that the run wrote (and the brokers' logs of topics), none with a secret; how many."""
    files = [mirror.output, *(directory / "events").rglob("*"), *(directory / "work").rglob("*"),
             *(directory / "state").rglob("*")]  # fmt: skip
    for cluster in pair:
        segments = Path(cluster.kafka.log_path()).parent.rglob("*-[0-9]*/*.log")
        files += [path for path in segments if "__cluster_metadata" not in path.parent.name]
    searched = 0
    for path in files:
        if path.is_file():
            searched += 1
            data = path.read_bytes()
            for secret in PLANTED:
                assert secret.encode() not in data, path
    return searched


def _with_events(directory: Path) -> list[str]:
    """Options for an event log that can be read."""
    events = directory / "events"
    events.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false"}  # fmt: skip
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def test_a_mirror_from_scram_over_tls_to_plain_shows_no_secret(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """Continuous, longer than a session; then everything that the run wrote is searched.

    The file holds references to the secrets, as config providers resolve them.
    """
    (port,) = free_ports(1)
    shown = ["--conf", "spark.ui.enabled=true", "--conf", f"spark.ui.port={port}"]
    seen: list[bytes] = []

    def look(process: int) -> None:
        _look_at_processes(process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/environment/", timeout=10) as page:
            seen.append(page.read())

    source = secured_clusters[0].properties("BOTH", "SCRAM-SHA-512")
    mirror = _mirror(
        secured_clusters,
        source,
        secured_clusters[1].properties("LOGIN", "PLAIN"),
        ("BOTH", "LOGIN"),
        tmp_path,
        "--debug",
        *_with_events(tmp_path),
        *shown,
        continuous_s=2.2 * SESSION_MS / 1000,
        look=look,
        provided=True,
    )
    file, secrets = tmp_path / "mm2.properties", tmp_path / "secrets.properties"
    assert not any(secret in file.read_text() for secret in PLANTED), "it has references"
    assert USER_SECRET in secrets.read_text()
    assert not re.search(r"Traceback|refused the login|CONNECTION_LOST", mirror.text())
    page = seen[-1]
    assert b"spark.eventLog.dir" in page, "the environment page"
    assert not any(secret.encode() in page for secret in PLANTED)
    assert _search(mirror, tmp_path, secured_clusters) > 20
    events = (tmp_path / "events").rglob("*")
    assert any(path.stat().st_size > 10_000 for path in events if path.is_file())


def test_a_mirror_between_mutual_tls_and_oauth(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """Tokens come over TLS and last for seconds; by default nothing shows Spark's UI."""
    ports: set[int] = set()

    def look(process: int) -> None:
        _look_at_processes(process)
        for each in _tree(process):
            with contextlib.suppress(psutil.Error):
                found = each.net_connections("tcp")
                ports.update(one.laddr.port for one in found if one.status == psutil.CONN_LISTEN)

    authority = Authority("Endpoint's authority")
    (tmp_path / "authority.pem").write_text(authority.pem())
    trusted = f'ssl.truststore.type="PEM" ssl.truststore.location="{tmp_path}/authority.pem"'
    with token_endpoint(authority.certify("endpoint", "localhost"), tmp_path) as endpoint:
        target = secured_clusters[1].properties("BOTH")
        mirror = _mirror(
            secured_clusters,
            secured_clusters[0].properties("MUTUAL"),
            target | endpoint.properties(CLIENT_SECRET, trusted),
            ("MUTUAL", "BOTH"),
            tmp_path,
            "--debug",
            *_with_events(tmp_path),
            continuous_s=2.2 * SESSION_MS / 1000,
            look=look,
        )
        # The driver and the slots' processes get tokens of their own, and get them again.
        assert len(endpoint.asked) >= 4
    assert not re.search(r"Traceback|refused the login|CONNECTION_LOST", mirror.text())
    assert ports, "processes were looked at"
    assert not ports & set(range(4040, 4057)), "the ports that Spark's UI tries"
    assert _search(mirror, tmp_path, secured_clusters) > 20
    (environment,) = (
        json.loads(line)
        for path in (tmp_path / "events").rglob("*")
        if path.is_file()
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith('{"Event":"SparkListenerEnvironmentUpdate"')
    )
    assert environment["Spark Properties"]["spark.ui.enabled"] == "false"
