"""Every command that asks clusters says soon which one is away, where it is, and why."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.shared import connections
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.errors import Unreachable
from sparkmirror.settings import ClusterClient

FLOW = "A->B"
VERBS = (
    ("plan", "FILE"),
    ("topics", "FILE"),
    ("groups", "FILE"),
    ("clusters", "FILE"),
    ("offsets", "translate", "FILE", FLOW, "--group", "g"),
    ("status", "FILE"),
    ("lag", "FILE"),
    ("lag", "CONSUMER"),
    ("lag", "--group", "g", "--bootstrap-server", "TARGET"),
    ("pause", "FILE", FLOW),
    ("resume", "FILE"),
    ("drain", "FILE"),
    ("gaps", "FILE"),
    ("verify", "FILE"),
    ("acls", "lock", "FILE", FLOW, "--principal", "User:mirror"),
)


@contextmanager
def refused() -> Iterator[str]:
    """An address at which nothing listens, for as long as the context lasts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def files(directory: Path, source: str, target: str) -> dict[str, str]:
    mm2, mm1 = directory / "mm2.properties", directory / "consumer.properties"
    mm2.write_text(
        f"clusters=A,B\nA.bootstrap.servers={source}\nB.bootstrap.servers={target}\n"
        "A->B.enabled=true\nA->B.topics=t.*\nB->A.enabled=false\n"
    )
    mm1.write_text(f"bootstrap.servers={target}\ngroup.id=g\n")
    return {"FILE": str(mm2), "CONSUMER": str(mm1), "TARGET": target}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb[:2]))
@pytest.mark.parametrize("way", ["refused", "unresolved"])
def test_a_cluster_that_is_away_is_named_with_the_reason(
    verb: tuple[str, ...], way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused() as address:
        # The label is too long for any name: no resolver is asked, so none can hang.
        server = address if way == "refused" else f"{'x' * 64}.example:9092"
        paths = files(tmp_path, server, server)
        assert main([paths.get(word, word) for word in verb]) in (1, 3)
    told = capsys.readouterr().err
    assert f"({server}: " in told
    assert ("connection refused" if way == "refused" else "does not resolve") in told
    assert "KafkaTimeoutError" not in told
    assert told.count("cluster B") <= 1, "each cluster is reported once"


def test_silent_clusters_are_waited_for_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are probed at once, and nothing else is tried with them."""
    began = []
    real = connections._Probe

    def probe(client: ClusterClient) -> connections._Probe:
        # All probes begin before the first one has ended.
        assert all(one.thread.is_alive() for one in began)
        began.append(real(client))
        return began[-1]

    monkeypatch.setattr(connections, "_Probe", probe)
    monkeypatch.setattr(connections, "_PROBE_MS", 5_000)
    monkeypatch.setattr("sparkmirror.wire.probe.reach._LATE_S", 30.0)
    with silent() as source, silent() as target:
        assert main(["plan", files(tmp_path, source, target)["FILE"], "--format", "json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {"flows": []}
    assert {one.client.alias for one in began} == {"A", "B"}
    errors = [json.loads(line) for line in err.splitlines()]
    assert sorted(error["where"] for error in errors) == ["cluster A", "cluster B"]
    for error in errors:
        assert error["code"] == "UNREACHABLE"
        assert "accepts connections but never answers" in error["what"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PROBE_MS", 1_500)
    monkeypatch.setattr(connections, "_SILENT_S", 0.05)
    terminal, plain = Terminal(), io.StringIO()
    for stream in (terminal, plain):
        monkeypatch.setattr("sys.stderr", stream)
        with silent() as address, Connections() as opened:
            client = ClusterClient("west", (address,), "test")
            with pytest.raises(Unreachable, match=address):
                opened.cluster(client)
    assert f"connecting to west ({address.rpartition(':')[0]}" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K"), "the line is gone at the end"
    assert plain.getvalue() == ""


def test_each_round_of_a_watch_probes_anew() -> None:
    """One that was away may be back, and the other way round."""
    with refused() as address, Connections() as opened:
        client = ClusterClient("west", (address,), "test")
        for _ in range(2):
            with pytest.raises(Unreachable, match="refused"):
                opened.cluster(client)
        (first,) = opened._probes
        opened.again()
        with pytest.raises(Unreachable, match="refused"):
            opened.cluster(client)
        assert opened._probes[0] is not first
