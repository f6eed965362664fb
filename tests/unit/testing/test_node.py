"""What is known of a broker's process from outside."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkmirror.testing.node import HOST, Node
from sparkmirror.testing.probe import free_ports
from tests.patience import patience

_BROKER = f"""
import socket, struct, sys
with socket.create_server(({HOST!r}, int(sys.argv[1]))) as server:
    print(flush=True)
    while True:
        client, _ = server.accept()
        with client:
            client.recv(1024)
            body = struct.pack(">iiih1sih", 1, 1, 1, 1, b"h", 9092, -1)
            client.sendall(struct.pack(">i", len(body)) + body)
"""
"""What answers as a broker does: it is number 1, and alone."""


@contextmanager
def _broker(port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", "-S", "-c", _BROKER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_a_broker_is_ready_when_its_own_process_responds(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    node = Node(1, tmp_path, port)
    assert not node.ready(frozenset({1}))
    with _broker(port) as ours:
        node.process = ours
        deadline = time.monotonic() + patience()
        while not node.ready(frozenset({1})):
            assert time.monotonic() < deadline
        assert not node.ready(frozenset({1, 2}))


def test_a_foreign_broker_on_its_port_is_not_taken_for_it(tmp_path: Path) -> None:
    """Another process took the port after it was chosen; ours has not noticed yet."""
    port, other = free_ports(2)
    with _broker(port), _broker(other) as ours:
        assert not Node(1, tmp_path, port, process=ours).ready(frozenset({1}))


def test_what_is_no_broker_on_its_port_is_not_ready(tmp_path: Path) -> None:
    """It answers with a frame that ends too soon."""
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1024)
                client.sendall(struct.pack(">iiii", 12, 1, 5, 7))

        serving = threading.Thread(target=answer)
        serving.start()
        assert not Node(1, tmp_path, server.getsockname()[1]).ready(frozenset())
        serving.join(10)
        assert not serving.is_alive(), "it was asked"


def test_a_data_directory_is_formatted_like_another(tmp_path: Path) -> None:
    first, second = Node(1, tmp_path / "1", 1), Node(2, tmp_path / "2", 2)
    first.data.mkdir(parents=True)
    (first.data / "bootstrap.checkpoint").write_bytes(b"features")
    (first.data / "meta.properties").write_text("#\nnode.id=1\nversion=1\ncluster.id=a\n")
    assert first.formatted
    assert not second.formatted
    second.write_format(first.format_files(), {"cluster.id": "b", "directory.id": "d"})
    assert second.formatted
    assert (second.data / "bootstrap.checkpoint").read_bytes() == b"features"
    said = (second.data / "meta.properties").read_text()
    assert said == "#\nnode.id=2\nversion=1\ncluster.id=b\n"
