"""Whole mirrors over TLS and SASL; what they write and show holds no secret."""

from __future__ import annotations

import re
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sparkmirror.demo.probe import free_ports
from tests.certificates import PASSWORD
from tests.kafka.mirror_process import MirrorProcess, write_mm2
from tests.kafka.secure import SESSION_MS, USER_SECRET, Secured
from tests.kafka.support import Sent, create_topic, produce, wait_until_equal

pytestmark = pytest.mark.timeout(240)


def _mirror(
    pair: tuple[Secured, Secured],
    source: dict[str, str],
    target: dict[str, str],
    listeners: tuple[str, str],
    directory: Path,
    *arguments: str,
    continuous_s: float = 0.0,
    look: Callable[[int], None] = lambda _: None,
) -> MirrorProcess:
    """One mirror of a new topic; ``look`` is called with its process id while it runs."""
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
    path = write_mm2(directory / "mm2.properties", p.kafka, q.kafka, topic, extra)
    command = ["run", str(path), "--work-dir", str(directory / "work"), "--log-format", "json"]
    if not continuous_s:
        command.append("--once")
    mirror = MirrorProcess(directory, [*command, *arguments])
    try:
        if continuous_s:
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}", timeout_s=90)
            end = time.monotonic() + continuous_s
            while time.monotonic() < end:
                produce(p.kafka, topic, records[:20])
                look(mirror.process.pid)
                time.sleep(0.5)
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}", timeout_s=30)
            assert mirror.drain(30)[0] == 0, mirror.text()
        else:
            assert mirror.wait(150) == 0, mirror.text()
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}", timeout_s=10)
    finally:
        mirror.kill()
    return mirror


PLANTED = (USER_SECRET, PASSWORD)


def _look_at_processes(root: int) -> None:
    """No command line of the run holds a secret; arguments are for everybody to see."""
    process = psutil.Process(root)
    for each in (process, *process.children(recursive=True)):
        try:
            line = " ".join(each.cmdline())
        except psutil.Error:
            continue
        for secret in PLANTED:
            assert secret not in line


def test_a_mirror_from_scram_over_tls_to_plain_shows_no_secret(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """Continuous, longer than a session; then everything that the run wrote is searched."""
    events = tmp_path / "events"
    events.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false", "spark.ui.enabled": "true"}  # fmt: skip
    (port,) = free_ports(1)
    settings["spark.ui.port"] = str(port)
    seen: list[bytes] = []

    def look(process: int) -> None:
        _look_at_processes(process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/environment/", timeout=10) as page:
            seen.append(page.read())

    arguments = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    source = secured_clusters[0].properties("BOTH", "SCRAM-SHA-512")
    mirror = _mirror(
        secured_clusters,
        source,
        secured_clusters[1].properties("LOGIN", "PLAIN"),
        ("BOTH", "LOGIN"),
        tmp_path,
        "--debug",
        *arguments,
        continuous_s=2.2 * SESSION_MS / 1000,
        look=look,
    )
    assert not re.search(r"Traceback|refused the login|CONNECTION_LOST", mirror.text())
    page = seen[-1]
    assert b"spark.eventLog.dir" in page, "the environment page"
    assert not any(secret.encode() in page for secret in PLANTED)
    searched = 0
    for path in (mirror.output, *events.rglob("*"), *(tmp_path / "work").rglob("*")):
        if path.is_file():
            searched += 1
            data = path.read_bytes()
            for secret in PLANTED:
                assert secret.encode() not in data, path
    assert searched > 5
    assert any(path.stat().st_size > 10_000 for path in events.rglob("*") if path.is_file())


def test_a_mirror_between_mutual_tls_and_oauth(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    mirror = _mirror(
        secured_clusters,
        secured_clusters[0].properties("MUTUAL"),
        secured_clusters[1].properties("BOTH", "OAUTHBEARER"),
        ("MUTUAL", "BOTH"),
        tmp_path,
    )
    assert "refused the login" not in mirror.text()
