"""Two networks of this machine's kernel, each with a broker and a name server of its own.

Each is a process in network and mount namespaces of its own: nothing of the machine's network is
touched, and all of it is gone when the processes are. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.support import Sent, create_topic, produce
from tests.lacking import lacks

__all__ = ["Broker", "Ended", "Network", "connected", "needs_namespaces"]

_START_S = 240  # a broker by itself may take three minutes
_COMMAND_S = 30


def needs_namespaces() -> None:
    """Skips the test where this machine does not let us make networks."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter", "mount"))):
        lacks("network namespaces need root, iproute2 and util-linux")
    tried = ["unshare", "--net", "--mount", "ip", "link", "add", "type", "veth"]
    if subprocess.run(tried, capture_output=True, timeout=30, check=False).returncode != 0:
        lacks("this machine allows no network namespaces")


@dataclass(frozen=True)
class Broker:
    """A broker. ``listeners``: the address that each advertises, by port; the first is our own.

    ``topic``: one that it has, with some records; empty: none.
    """

    name: str
    listeners: Mapping[int, str]
    topic: str = ""


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, what it printed, and how long it took."""

    code: int
    output: str
    errors: str
    seconds: float


class Network:
    """A network: its loopback interface is up, and its name server knows ``names`` only."""

    def __init__(self, directory: Path, names: Mapping[str, str]) -> None:
        directory.mkdir()
        self._log = directory / "network.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--net", "--mount", sys.executable, "-m", __name__, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.ask({"names": dict(names)})

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: Mapping[str, Any]) -> Any:
        """Has the process in the network do ``what``, and waits until it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        watch = threading.Timer(_START_S, self._process.kill)
        watch.start()
        answer = self._process.stdout.readline()
        watch.cancel()
        assert answer.endswith(b"\n"), self._log.read_text(errors="replace")[-4_000:]
        return json.loads(answer)

    def start(self, broker: Broker) -> None:
        """Starts a broker in the network; it ends with it."""
        self.ask({"broker": {**asdict(broker), "listeners": list(broker.listeners.items())}})

    def sparkmirror(self, *arguments: str) -> Ended:
        """Runs ``sparkmirror`` as on a machine in the network."""
        return Ended(**self.ask({"arguments": arguments}))

    def ip(self, *arguments: str) -> None:
        """``ip`` in the network."""
        ended = subprocess.run(
            ["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", *arguments],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert ended.returncode == 0, f"ip {' '.join(arguments)}: {ended.stderr}"

    def stop(self) -> None:
        """Ends the network's processes, and so the network."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait(10)
            assert self._process.stdout is not None
            self._process.stdout.close()


@contextmanager
def connected(
    directory: Path, addresses: Sequence[str], names: Sequence[Mapping[str, str]]
) -> Iterator[tuple[Network, ...]]:
    """Two networks with a cable between them. ``addresses``: of its ends, ``10.0.0.1/24``."""
    with ExitStack() as stack:
        networks = []
        for number, known in enumerate(names):
            networks.append(Network(directory / f"network-{number}", known))
            stack.callback(networks[-1].stop)
        one, other = networks
        one.ip("link", "add", "cable", "type", "veth", "peer", "cable", "netns", str(other.pid))
        for network, address in zip(networks, addresses, strict=True):
            network.ip("address", "add", address, "dev", "cable")
            network.ip("link", "set", "cable", "up")
        yield tuple(networks)


# -- inside ----------------------------------------------------------------------------------------


def _names_answered(names: Mapping[str, str], server: socket.socket) -> None:
    while True:
        query, client = server.recvfrom(512)
        server.sendto(_dns_answer(names, query), client)


def _dns_answer(names: Mapping[str, str], query: bytes) -> bytes:
    """The answer to one question: the address, nothing for another type, or no such name."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    question = query[12 : at + 5]
    address = names.get(".".join(labels).lower())
    found = address is not None and query[at + 1 : at + 3] == b"\0\1"
    flags = 0x8580 | (3 if address is None else 0)
    head = query[:2] + struct.pack(">HHHHH", flags, 1, int(found), 0, 0)
    if not found or address is None:
        return head + question
    row = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    return head + question + row


def _serve_names(directory: Path, names: Mapping[str, str]) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for file, text in (
        ("resolv.conf", "nameserver 127.0.0.1\n"),
        ("nsswitch.conf", "hosts: files dns\n"),
    ):
        own = directory / file
        own.write_text(text)
        subprocess.run(["mount", "--bind", str(own), f"/etc/{file}"], check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=_names_answered, args=(names, server), daemon=True).start()


def _start_broker(name: str, listeners: Sequence[tuple[int, str]], topic: str) -> KafkaCluster:
    controller = 19_999
    names = [f"L{port}" for port, _ in listeners]
    config = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"CONTROLLER://127.0.0.1:{controller},"
        + ",".join(f"L{port}://0.0.0.0:{port}" for port, _ in listeners),
        "advertised.listeners": ",".join(f"L{port}://{where}" for port, where in listeners),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,"
        + ",".join(f"{one}:PLAINTEXT" for one in names),
        "inter.broker.listener.name": names[0],
    }
    cluster = KafkaCluster(name, ports=(listeners[0][0],), config=config, heap="300m")
    cluster.start()
    if topic:
        create_topic(cluster, topic)
        produce(cluster, topic, [Sent(b"x")] * 10)
    return cluster


def _run(arguments: Sequence[str]) -> Ended:
    began = time.monotonic()
    with (
        # A broker that pauses for some seconds is a finding of its own.
        pytest.MonkeyPatch.context() as patched,
        redirect_stdout(io.StringIO()) as output,
        redirect_stderr(io.StringIO()) as errors,
    ):
        patched.setattr("sparkmirror.doctor.examine._REQUEST_MS_MAX", 9_000)
        code = main(arguments)
    return Ended(code, output.getvalue(), errors.getvalue(), time.monotonic() - began)


def _main() -> None:
    directory = Path(sys.argv[1])
    with ExitStack() as stack:
        for line in sys.stdin:
            asked, answer = json.loads(line), None
            if "names" in asked:
                _serve_names(directory, asked["names"])
            elif "broker" in asked:
                stack.callback(_start_broker(**asked["broker"]).stop)
            else:
                answer = asdict(_run(asked["arguments"]))
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
