"""Connections of the commands that look at clusters: a cluster that is away is reported soon.

Clients wait for their whole request timeout, again and again, and cannot say what is wrong. So each
cluster is probed first, all of them at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sparkmirror.text import printable

if TYPE_CHECKING:
    from sparkmirror.model import ClusterClient
    from sparkmirror.wire.admin.cluster import Cluster

# With the start of the command itself, the user has the reason within ten seconds.
_PROBE_MS = 8_000
_SILENT_S = 0.5


class _Probe:
    """`wire.probe.reach.reach` in a thread of its own; its error waits here."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.error: BaseException | None = None
        self._reach = _loaded(client)
        self.thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._reach(self.client, timeout_ms=min(self.client.request_timeout_ms, _PROBE_MS))
        except BaseException as error:  # raised by `Connections.cluster`
            self.error = error


class Connections:
    """One connection per cluster and way to reach it; they close with the context."""

    def __init__(self) -> None:
        self._clusters: list[Cluster] = []
        self._probes: list[_Probe] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for cluster in self._clusters:
            cluster.close()

    def expect(self, clients: Iterable[ClusterClient]) -> None:
        """Begin to probe what will be asked for: several silent clusters take the time of one."""
        for client in clients:
            self._probe(client)

    def cluster(self, client: ClusterClient) -> Cluster:
        """A connection for ``client``; clients that differ only in their name share one.

        Raises `MirrorError` that names each bootstrap server and what is wrong with it, after ten
        seconds at most.
        """
        from sparkmirror.wire.admin.cluster import Cluster  # noqa: PLC0415

        probe = self._probe(client)
        self._await(probe)
        if probe.error is not None:
            raise probe.error
        for known in self._clusters:
            if _same(known.client, client):
                return known
        cluster = Cluster(client)
        self._clusters.append(cluster)
        return cluster

    def again(self) -> None:
        """Probe all clusters anew when they are asked for next: one may be away, or back, by then.

        Begins at once, since they will be.
        """
        before, self._probes = self._probes, []
        self.expect(probe.client for probe in before)

    def _probe(self, client: ClusterClient) -> _Probe:
        for probe in self._probes:
            if _same(probe.client, client):
                return probe
        self._probes.append(_Probe(client))
        return self._probes[-1]

    def _await(self, probe: _Probe) -> None:
        """Wait for the end of ``probe``; on a terminal a line says so, and is gone afterwards."""
        began_s = time.monotonic()
        told = ""
        while probe.thread.is_alive():
            probe.thread.join(_SILENT_S)
            if not sys.stderr.isatty() or time.monotonic() - began_s < _SILENT_S:
                continue
            waiting = dict.fromkeys(
                f"{one.client.alias} ({', '.join(one.client.bootstrap_servers)})"
                for one in self._probes
                if one.thread.is_alive()
            )
            line = printable(f"connecting to {', '.join(waiting)} ...")
            if waiting and line != told:
                sys.stderr.write(f"\r\x1b[K{line}")
                sys.stderr.flush()
                told = line
        if told:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _loaded(client: ClusterClient) -> Callable[..., object]:
    """`wire.probe.reach.reach`, and with it all that it imports on its way.

    On this thread: two that import modules which import each other end with a deadlock.
    """
    import sparkmirror.wire.admin.cluster  # noqa: PLC0415
    from sparkmirror.wire.probe.reach import reach  # noqa: PLC0415

    if client.security_protocol != "PLAINTEXT":
        import sparkmirror.wire.security.sasl  # noqa: PLC0415
        import sparkmirror.wire.security.tls  # noqa: F401, PLC0415
    return reach


def _same(one: ClusterClient, other: ClusterClient) -> bool:
    return replace(one, client_id=other.client_id) == other
