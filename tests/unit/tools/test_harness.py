"""What the tests on brokers look at while it changes under their eyes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.records.header import HEADER, LOG_OVERHEAD_BYTES
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.node import Node
from tests.kafka.clusters.listeners import FurtherPorts, Listeners
from tests.kafka.clusters.proxy import HOST, Proxy
from tests.kafka.harness.mirror_process import MirrorProcess, stored
from tests.patience import patience


def test_a_line_that_is_half_written_is_no_document_yet(tmp_path: Path) -> None:
    mirror = MirrorProcess.__new__(MirrorProcess)
    mirror.output = tmp_path / "output.txt"
    mirror.output.write_text('{"a": 1}\nplain words\n{"b": "begun')
    assert mirror.documents() == [{"a": 1}]
    with mirror.output.open("a") as more:
        more.write('"}\n')
    assert mirror.documents() == [{"a": 1}, {"b": "begun"}]


def test_a_log_whose_file_the_broker_renames_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "t-0" / f"{0:020d}.log"
    log.parent.mkdir()
    row = [0] * len(HEADER.unpack(bytes(HEADER.size)))
    row[1] = HEADER.size - LOG_OVERHEAD_BYTES
    log.write_bytes(HEADER.pack(*row))
    log.with_name(f"{1:020d}.log").write_bytes(HEADER.pack(*row))
    read, left = Path.read_bytes, [1]

    def reading(path: Path) -> bytes:
        if left:
            left.pop()
            log.with_name(f"{1:020d}.log").rename(log.with_suffix(".deleted"))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    cluster: Any = KafkaCluster("A")
    monkeypatch.setattr(cluster, "data_path", lambda: tmp_path)
    assert len(stored(cluster, "t")) == 1
    assert left == []


def test_a_stall_that_did_not_come_is_gone_with_the_other_faults() -> None:
    with socket.create_server((HOST, 0)) as server:
        proxy = Proxy(server.getsockname()[1])
        try:
            proxy.stall_behind(3)
            proxy.heal()
            with socket.create_connection((HOST, proxy.port), timeout=patience()) as client:
                broker, _ = server.accept()
                with broker:
                    broker.sendall(b"answer")
                    got = b""
                    while len(got) < 6:
                        got += client.recv(6)
            assert not proxy.stalled
        finally:
            proxy.close()


def test_the_ports_of_a_node_are_its_own_and_another_node_has_others(tmp_path: Path) -> None:
    further = FurtherPorts("LOGIN")
    first, again = (Node(1, tmp_path, 9_092) for _ in range(2))
    ports = further.of(first)
    assert further.of(first) is ports
    assert further.of(again) is not ports
    assert further.of(again) is further.of(again)


def test_listeners_are_the_nodes_port_and_the_further_ones(tmp_path: Path) -> None:
    listeners = Listeners("OPEN", "LOGIN", hosts={"LOGIN": "localhost"})
    config = listeners(Node(1, tmp_path, 9_092, 9_093))
    login = listeners.servers["LOGIN"]
    assert login.startswith("localhost:")
    assert listeners.servers["OPEN"] == f"{HOST}:9092"
    assert config["advertised.listeners"] == f"OPEN://{HOST}:9092,LOGIN://{login}"
    assert config["listeners"] == f"{config['advertised.listeners']},CONTROLLER://{HOST}:9093"
