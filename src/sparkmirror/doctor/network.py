"""Checks the network to a cluster: every bootstrap server, every advertised address.

The classic failure: a bootstrap server responds, but this machine cannot reach the brokers that it
advertises.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.doctor.finding import Finding, Level, at_work, ok
from sparkmirror.errors import MirrorError
from sparkmirror.settings import FETCH_BYTES_MAX, ClusterClient, FlowSettings
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.cluster.views import ClusterView
from sparkmirror.wire.fetch.channels import CHANNELS_MAX
from sparkmirror.wire.probe.advertised import advertised_failure, check_paths
from sparkmirror.wire.probe.broker_path import (
    DNS,
    KAFKA,
    LOGIN,
    TCP,
    TLS,
    BrokerPath,
    Resolver,
    Step,
    resolve,
)
from sparkmirror.wire.produce.joining import ROUND_TRIP_S_MIN
from sparkmirror.wire.produce.topic_limits import ACCEPTED_BYTES

_TRIED = {
    DNS: "resolve the name",
    TCP: "open a TCP connection",
    TLS: "do the TLS handshake and check the certificate",
    KAFKA: "request API versions and metadata",
    LOGIN: "log in",
}
# Default batch.size of producers.
_USUAL_BATCH_BYTES = 16 * 1024
# The broker's socket buffer that limits a connection, and the least data per round trip that was
# measured, in buffer sizes (benchmarks/results/wan-default-buffers-2026-11-23.md).
# A slot needs its processor for more than this.
_ENOUGH_MB_S = 100.0
_SOCKET_BUFFERS = {
    "source": ("socket.send.buffer.bytes", 2.4),
    "target": ("socket.receive.buffer.bytes", 1.2),
}
_LEVELS = {"ok": Level.OK, "warn": Level.WARN, "fail": Level.FAIL}


@dataclass(frozen=True, slots=True)
class Network:
    """The network to one cluster. ``view``: its brokers as advertised; None: not reached.

    ``usable``: whether any advertised broker responds; without one no other check is possible.
    """

    client: ClusterClient
    findings: tuple[Finding, ...]
    view: ClusterView | None
    usable: bool


def path_key(client: ClusterClient) -> str:
    """Key for the way to a cluster: bootstrap servers, protocol and client properties."""
    properties = frozenset(client.properties.items())
    return f"{hash((client.bootstrap_servers, client.security_protocol, properties)):x}"


def explore(client: ClusterClient, *, timeout_s: float, resolver: Resolver = resolve) -> Network:
    """Try all bootstrap servers in parallel, then all advertised addresses in parallel.

    Takes about ``timeout_s`` in all. Does not raise `MirrorError`.
    """
    ways = check_paths(client, timeout_s=timeout_s, resolver=resolver)
    findings: list[Finding] = []
    for way in ways.bootstrap:
        findings += _of_bootstrap(client.alias, way, other=ways.reached)
    if ways.reached is None:
        return Network(client, tuple(findings), None, usable=False)
    for node, way in ways.brokers:
        findings += findings_of(client.alias, way, node)
    usable = any(way.whole for _, way in ways.brokers)
    return Network(client, tuple(findings), ways.reached.cluster, usable)


def findings_of(alias: str, way: BrokerPath, node: int | None, place: str = "") -> list[Finding]:
    """Findings for each step to one address. ``node``: its broker id; None: a bootstrap server."""
    return [_finding(alias, way, step, node, place) for step in way.steps]


def _finding(alias: str, way: BrokerPath, step: Step, node: int | None, place: str) -> Finding:
    address = f"{way.host}:{way.port}"
    subject = f"cluster {alias}, bootstrap {address}"
    found, do = step.found, step.do
    if node is not None:
        subject = f"cluster {alias}, broker {node} at {address}"
        if step.outcome == "fail":
            found, do = advertised_failure(node, way, step)
    return Finding(step.name, _LEVELS[step.outcome], subject, _TRIED[step.name], found, do, place)


def _of_bootstrap(alias: str, way: BrokerPath, other: BrokerPath | None) -> list[Finding]:
    """Findings for a bootstrap server; a failure is only a warning if another one responds."""
    findings = findings_of(alias, way, None)
    if way.whole or other is None:
        return findings
    return [
        Finding(
            one.check,
            Level.WARN if one.level is Level.FAIL else one.level,
            one.subject,
            one.tried,
            f"{one.found}; {other.host}:{other.port} responds"
            if one.level is Level.FAIL
            else one.found,
            one.do,
        )
        for one in findings
    ]


def check_round_trip(cluster: Inspector, flow: FlowSettings, side: str) -> list[Finding]:
    """Measure the round trip to each broker, and estimate the throughput over the longest one.

    ``side``: ``source`` or ``target``. A long round trip alone is not a warning.
    """
    tried, subject = (
        "send a small request several times to each broker",
        f"cluster {cluster.alias}, the {side}",
    )
    try:
        all_ms = cluster.round_trips_ms()
    except MirrorError as error:
        return [at_work("round-trip", subject, tried, error)]
    trips_ms = {node: one for node, one in all_ms.items() if one is not None}
    farthest = max(trips_ms, key=lambda node: trips_ms[node])
    trip_ms = trips_ms[farthest]
    found = f"a round trip takes {trip_ms:.1f} ms"
    if len(trips_ms) > 1:
        least_ms = min(trips_ms.values())
        found = (
            f"a round trip takes {least_ms:.1f} to {trip_ms:.1f} ms, the longest one to broker "
            f"{farthest}"
        )
    if len(trips_ms) < len(all_ms):
        found += f"; {len(all_ms) - len(trips_ms)} of {len(all_ms)} brokers do not respond"
    if trip_ms < ROUND_TRIP_S_MIN * 1000:
        return [ok("round-trip", subject, tried, found)]
    do = _of_far_source(flow, trip_ms) if side == "source" else _of_far_target(flow, trip_ms)
    return [
        Finding("round-trip", Level.OK, subject, tried, found, do),
        _check_socket_buffers(cluster, flow, side, trip_ms),
        *_check_own_buffer(cluster, flow, side, trip_ms),
    ]


def _check_own_buffer(
    cluster: Inspector, flow: FlowSettings, side: str, trip_ms: float
) -> list[Finding]:
    """A finding if the mirror's file fixes a socket buffer that a far cluster is too far for."""
    key, size = (
        ("the consumer's receive.buffer.bytes", flow.fetch.receive_buffer_bytes)
        if side == "source"
        else ("the producer's send.buffer.bytes", flow.produce.send_buffer_bytes)
    )
    carried = size / trip_ms / 1000
    if size <= 0 or carried >= _ENOUGH_MB_S:
        return []
    return [
        Finding(
            "socket-buffers",
            Level.WARN,
            f"cluster {cluster.alias}, the {side}",
            f"read {key} in the file",
            f"it is {size:,} bytes, which limits each connection over a round trip of "
            f"{trip_ms:.1f} ms",
            f"Expect some {carried:.1f} MB/s for each connection. Leave it out, or write -1: then "
            "the kernel sizes the buffers.",
        )
    ]


def _check_socket_buffers(
    cluster: Inspector, flow: FlowSettings, side: str, trip_ms: float
) -> Finding:
    """Check whether socket buffers of a remote cluster's brokers limit each connection."""
    name, times = _SOCKET_BUFFERS[side]
    check, subject = "socket-buffers", f"cluster {cluster.alias}, the {side}"
    tried = f"read {name} of the brokers"
    try:
        configs = cluster.broker_configs()
    except MirrorError as error:
        return at_work(check, subject, tried, error)
    fixed = {node: int(one[name]) for node, one in configs.items() if int(one.get(name, -1)) >= 0}
    if not fixed:
        return ok(check, subject, tried, "it is -1: the kernel sizes the buffers")
    smallest = min(fixed.values())
    carried = times * smallest / trip_ms / 1000
    return Finding(
        check,
        Level.WARN,
        subject,
        tried,
        f"it is {smallest:,} bytes on {len(fixed)} of {len(configs)} brokers, which limits each "
        f"connection over a round trip of {trip_ms:.1f} ms",
        f"Expect some {carried:.1f} MB/s for each of {flow.tasks_max} slots (tasks.max) and each "
        f"of these brokers. Set {name}=-1 on the {side}'s brokers, or raise tasks.max.",
    )


def _of_far_source(flow: FlowSettings, trip_ms: float) -> str:
    carried = min(flow.fetch.fetch_max_bytes, FETCH_BYTES_MAX) / trip_ms / 1000
    return (
        f"Expect at most {carried:.0f} MB/s from a partition, and from each broker for each of "
        f"{flow.tasks_max} slots (tasks.max) {CHANNELS_MAX} times as much. Raise tasks.max if that "
        "is too little."
    )


def _of_far_target(flow: FlowSettings, trip_ms: float) -> str:
    def carried(batch_bytes: int) -> float:
        at_once = flow.produce.in_flight_requests_max if flow.produce.enable_idempotence else 1
        return at_once * batch_bytes / trip_ms / 1000

    usual = f"{carried(_USUAL_BATCH_BYTES):.1f} MB/s with batches of 16 KiB"
    if flow.produce.link_joining == "off":
        return (
            f"Expect at most {usual} for each partition: sparkmirror.link.joining=off keeps the "
            "source's batches as they are."
        )
    joined = carried(min(ACCEPTED_BYTES, flow.produce.request_bytes_max))
    return (
        f"Expect {usual} for each partition, and up to {joined:.0f} MB/s while it is behind: "
        "batches that wait are joined (sparkmirror.link.joining), to more if the topic's "
        "max.message.bytes is above the default."
    )
