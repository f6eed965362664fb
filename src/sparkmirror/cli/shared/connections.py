"""Connections of the commands that read clusters; an unavailable cluster is reported soon.

A Kafka client waits for its whole request timeout, repeatedly, and does not say what is wrong. So
each cluster is probed first, all of them at the same time.
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
    from sparkmirror.settings import ClusterClient
    from sparkmirror.wire.admin.cluster import Cluster

# Together with the start of the command, the user sees the reason within ten seconds.
_PROBE_MS = 7_000
_SILENT_S = 0.5


class _Probe:
    """`wire.probe.reach.reach` in its own thread; ``error`` keeps its error."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.error: BaseException | None = None
        self._reach = _loaded(client)
        self.thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._reach(self.client, timeout_ms=min(self.client.request_timeout_ms, _PROBE_MS))
        except BaseException as error:  # `Connections.cluster` raises it
            self.error = error


class Connections:
    """One connection per cluster and set of client settings; the context closes them."""

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
        """Start to probe clusters that will be used; several silent ones take the time of one."""
        for client in clients:
            self._probe(client)

    def cluster(self, client: ClusterClient) -> Cluster:
        """A connection for ``client``; clients that differ only in ``client_id`` share one.

        Raises a `MirrorError` that names each bootstrap server and what is wrong with it, within
        ten seconds.
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
        """Start to probe all clusters again, because their availability may have changed."""
        before, self._probes = self._probes, []
        self.expect(probe.client for probe in before)

    def _probe(self, client: ClusterClient) -> _Probe:
        for probe in self._probes:
            if _same(probe.client, client):
                return probe
        self._probes.append(_Probe(client))
        return self._probes[-1]

    def _await(self, probe: _Probe) -> None:
        """Wait for the end of ``probe``; on a terminal a temporary line says so."""
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
    """`wire.probe.reach.reach`, with all modules that it imports later.

    They are imported in this thread: two threads that import modules which import each other
    deadlock.
    """
    import sparkmirror.wire.admin.cluster  # noqa: PLC0415
    from sparkmirror.wire.probe.reach import reach  # noqa: PLC0415

    if client.security_protocol != "PLAINTEXT":
        import sparkmirror.wire.security.sasl  # noqa: PLC0415
        import sparkmirror.wire.security.tls  # noqa: F401, PLC0415
    return reach


def _same(one: ClusterClient, other: ClusterClient) -> bool:
    return replace(one, client_id=other.client_id) == other
