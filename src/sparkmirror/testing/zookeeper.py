"""ZooKeeper mode: required by old brokers, optional for 3.x.

Only the oldest brokers write old batches: a broker of 2.8 still stores message formats 0 and 1
(``log.message.format.version``), which a mirror has to convert.
"""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from kazoo.client import KazooClient

from sparkmirror.errors import MachineError
from sparkmirror.testing.guard import spawn
from sparkmirror.testing.jvm import KafkaRuntime
from sparkmirror.testing.node import (
    HOST,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Node,
    common_properties,
    end,
    tail,
)

__all__ = ["ZooKeeper", "needs_zookeeper", "zookeeper_properties"]

_POLL_S = 0.05
_SESSION_MS = 20_000


def needs_zookeeper(version: str) -> bool:
    """Whether brokers of ``version`` (such as ``2.8.2``) have no production-ready KRaft."""
    major, minor, *_ = (int(part) for part in version.split("."))
    return (major, minor) < (3, 3)


class ZooKeeper:
    """One ZooKeeper server, from the jars of the broker that needs it."""

    def __init__(self, runtime: KafkaRuntime, directory: Path, port: int) -> None:
        self.connect = f"{HOST}:{port}"
        self._runtime = runtime
        self._directory = directory
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it responds. Raises MachineError if it does not."""
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = self._directory / "zookeeper.properties"
        settings.write_text(
            f"dataDir={self._directory / 'data'}\nclientPort={self._port}\n"
            f"clientPortAddress={HOST}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            f"tickTime=500\nmaxSessionTimeout={_SESSION_MS}\n4lw.commands.whitelist=srvr\n",
            "utf-8",
        )
        command = self._runtime.command(
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(settings),
            heap="128m",
            log_level="info",
        )
        log_path = self._directory / "zookeeper.log"
        with log_path.open("ab") as log:
            self._process = spawn(command, output=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise MachineError(
                    f"ZooKeeper did not start: {tail(log_path, 3)}",
                    where=str(log_path),
                    do="Check free memory and disk, then start again.",
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the server."""
        if self._process is not None:
            self._process.terminate()
            end(self._process, time.monotonic() + STOP_TIMEOUT_S)
            self._process = None

    def wait_until_forgotten(self, broker: int, chroot: str) -> None:
        """Wait until ``broker`` is not registered. Raises MachineError if it stays registered.

        A killed broker can restart only after its old session has expired.
        """
        client = KazooClient(hosts=self.connect, read_only=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            client.start(timeout=START_TIMEOUT_S)
            while client.exists(f"{chroot}/brokers/ids/{broker}") is not None:
                if time.monotonic() > deadline:
                    raise MachineError(
                        f"Broker {broker} is still registered after {START_TIMEOUT_S:.0f} s.",
                        where=f"ZooKeeper {self.connect}",
                        do="Look for another process that runs this broker.",
                    )
                time.sleep(_POLL_S)
        finally:
            client.stop()
            client.close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self._port), timeout=1) as connection:
                connection.sendall(b"srvr")
                return connection.recv(64).startswith(b"Zookeeper version")
        except OSError:
            return False


def zookeeper_properties(node: Node, nodes: int, connect: str) -> dict[str, str]:
    """Properties of one broker that keeps its metadata in the ZooKeeper at ``connect``."""
    return {
        "broker.id": str(node.id),
        "zookeeper.connect": connect,
        # Long, because on a busy machine a broker may not run for seconds. If its session expired
        # meanwhile, its requests would fail, or it would end.
        "zookeeper.session.timeout.ms": str(_SESSION_MS),
        "listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        **common_properties(node, nodes),
    }
