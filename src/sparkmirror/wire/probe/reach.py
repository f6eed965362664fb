"""Checks the bootstrap servers of a cluster before anything else is done with it.

A client can only report that it could not bootstrap, and the user needs to know how each server
failed. `wire.probe.broker_path` tries each of them.
"""

from __future__ import annotations

import queue
import threading
import time

from sparkmirror.config.clients.security import uses_sasl
from sparkmirror.errors import ConfigError, MirrorError, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.probe.broker_path import BrokerPath, Step, check_path

__all__ = ["REACH_TIMEOUT_MS", "reach"]

REACH_TIMEOUT_MS = 10_000
# A probe that ends at its limit says why; on a busy machine its thread may come later.
_LATE_S = 1.0


def reach(client: ClusterClient, *, timeout_ms: int | None = None) -> BrokerPath:
    """Check all bootstrap servers in parallel; the path to the first that returns metadata.

    Takes at most ``timeout_ms`` (default: the request timeout, at most 10 s) and a second. Raises
    an error that names every server and its failure: `Unreachable`, or the common class of all
    failures (`NotKafka`, `Unsupported`, `Denied` …). Raises `ConfigError` for an empty or malformed
    list, and for a login that cannot work.
    """
    where = f"cluster {client.alias}"
    addresses = [_address(server, where) for server in client.bootstrap_servers]
    if not addresses:
        raise ConfigError(
            "there is no bootstrap server.",
            where=where,
            do=f"Set {client.alias}.bootstrap.servers to host:port.",
        )
    if uses_sasl(client.security_protocol):
        # Imported where it is used: plaintext clients do without it.
        from sparkmirror.wire.security.sasl import login_for  # noqa: PLC0415

        login_for(client)
    bound_ms = min(client.request_timeout_ms, REACH_TIMEOUT_MS)
    timeout_s = (bound_ms if timeout_ms is None else timeout_ms) / 1000
    deadline = time.monotonic() + timeout_s
    paths: queue.SimpleQueue[BrokerPath] = queue.SimpleQueue()
    for host, port in addresses:
        # A server may delay its responses so that no single one is late: such a thread is left.
        threading.Thread(
            target=_check_into,
            args=(paths, client, host, port, timeout_s),
            name=f"reach-{host}:{port}",
            daemon=True,
        ).start()
    waiting = list(addresses)
    failures: list[tuple[str, Step]] = []
    while waiting:
        try:
            path = paths.get(timeout=max(0.0, deadline + _LATE_S - time.monotonic()))
        except queue.Empty:
            failures += [(f"{host}:{port}", _late(timeout_s)) for host, port in waiting]
            break
        if path.whole:
            return path
        waiting.remove((path.host, path.port))
        failures.append((f"{path.host}:{path.port}", path.steps[-1]))
    raise _no_server(client.alias, failures)


def _check_into(
    paths: queue.SimpleQueue[BrokerPath],
    client: ClusterClient,
    host: str,
    port: int,
    timeout_s: float,
) -> None:
    paths.put(check_path(client, host, port, timeout_s=timeout_s))


def _address(server: str, where: str) -> tuple[str, int]:
    host, colon, port = server.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"'{server}' is not host:port.", where=where, do="Write bootstrap.servers as host:port."
        )
    return host.strip("[]"), int(port)


def _late(timeout_s: float) -> Step:
    found = f"it does not finish its answers within {timeout_s:.1f} s"
    return Step("", "fail", found, "Check that the port is a Kafka listener, and the broker's log.")


def _no_server(alias: str, failures: list[tuple[str, Step]]) -> MirrorError:
    kinds = {step.kind for _, step in failures}
    kind = kinds.pop() if len(kinds) == 1 else Unreachable
    tried = "; ".join(f"{server}: {step.found}" for server, step in failures)
    advice = dict.fromkeys(step.do for _, step in failures)
    count = "the bootstrap server" if len(failures) == 1 else "none of the bootstrap servers"
    verb = "cannot be used" if len(failures) == 1 else "can be used"
    return kind(f"{count} {verb} ({tried}).", where=f"cluster {alias}", do=" ".join(advice))
