"""The network between a machine and a cluster: every bootstrap server, every advertised address.

The classic failure: a bootstrap server answers, and names brokers that this machine cannot reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkmirror.doctor.finding import Finding, Level
from sparkmirror.model import ClusterClient
from sparkmirror.wire.routes import split_address
from sparkmirror.wire.views import ClusterView
from sparkmirror.wire.walk import DNS, KAFKA, LOGIN, TCP, TLS, Resolver, Step, Way, resolve, walk

__all__ = ["Network", "explore", "findings_of"]

_THREADS_MAX = 64
_TRIED = {
    DNS: "resolve the name",
    TCP: "open a TCP connection",
    TLS: "shake hands with TLS and check the certificate",
    KAFKA: "ask for API versions and metadata",
    LOGIN: "log in",
}
_LEVELS = {"ok": Level.OK, "warn": Level.WARN, "fail": Level.FAIL}
_ADVERTISED_NAME = (
    "Set advertised.listeners of this broker to a name or IP address that is known here, or add a "
    "DNS forwarder (or a line in /etc/hosts) for it."
)
_ADVERTISED_PORT = (
    "Check advertised.listeners of this broker (host and port must lead to its listener) and the "
    "firewalls between here and there."
)


@dataclass(frozen=True, slots=True)
class Network:
    """What the way to one cluster is like. ``view``: its brokers as advertised, None: not reached.

    ``usable``: whether any advertised broker answers; without one nothing else can be asked.
    """

    client: ClusterClient
    findings: tuple[Finding, ...]
    view: ClusterView | None
    usable: bool


def explore(client: ClusterClient, *, timeout_s: float, resolver: Resolver = resolve) -> Network:
    """Walk to all bootstrap servers at once, then to all advertised addresses at once.

    Takes about ``timeout_s`` in all; never raises.
    """
    bootstrap = [split_address(server) for server in client.bootstrap_servers]
    ways = _walk_all(client, bootstrap, timeout_s / 2, resolver)
    findings: list[Finding] = []
    reached = [way for way in ways if way.whole]
    for way in ways:
        findings += _of_bootstrap(client.alias, way, other=reached[0] if reached else None)
    if not reached:
        return Network(client, tuple(findings), None, usable=False)
    view = reached[0].cluster
    assert view is not None
    known = {(way.host, way.port): way for way in ways}
    addresses = [(broker.host, broker.port) for broker in view.brokers]
    missing = list(dict.fromkeys(address for address in addresses if address not in known))
    known |= {
        (way.host, way.port): way for way in _walk_all(client, missing, timeout_s / 2, resolver)
    }
    for broker in view.brokers:
        way = known[broker.host, broker.port]
        findings += findings_of(client.alias, way, broker.node)
    usable = any(known[address].whole for address in addresses)
    return Network(client, tuple(findings), view, usable)


def _walk_all(
    client: ClusterClient,
    addresses: Sequence[tuple[str, int]],
    timeout_s: float,
    resolver: Resolver,
) -> list[Way]:
    if not addresses:
        return []
    with ThreadPoolExecutor(min(_THREADS_MAX, len(addresses)), "walk") as pool:
        return list(
            pool.map(
                lambda at: walk(client, *at, timeout_s=timeout_s, resolver=resolver), addresses
            )
        )


def findings_of(alias: str, way: Way, node: int | None, place: str = "") -> list[Finding]:
    """The steps to one broker. ``node``: who advertised the address; None: a bootstrap server."""
    return [_finding(alias, way, step, node, place) for step in way.steps]


def _finding(alias: str, way: Way, step: Step, node: int | None, place: str) -> Finding:
    address = f"{way.host}:{way.port}"
    subject = f"cluster {alias}, bootstrap {address}"
    found, do = step.found, step.do
    if node is not None:
        subject = f"cluster {alias}, broker {node} at {address}"
        if step.outcome == "fail":
            verb = ", which " if step.name == DNS else ": "
            found = f"broker {node} advertises {address}{verb}{found}"
            if step.name in (DNS, TCP) and "DNS servers" not in do:
                do = _ADVERTISED_NAME if step.name == DNS else f"{do} {_ADVERTISED_PORT}"
    return Finding(step.name, _LEVELS[step.outcome], subject, _TRIED[step.name], found, do, place)


def _of_bootstrap(alias: str, way: Way, other: Way | None) -> list[Finding]:
    """A bootstrap server that fails is only a warning where another one answers."""
    findings = findings_of(alias, way, None)
    if way.whole or other is None:
        return findings
    return [
        Finding(
            one.check,
            Level.WARN if one.level is Level.FAIL else one.level,
            one.subject,
            one.tried,
            f"{one.found}; {other.host}:{other.port} answers"
            if one.level is Level.FAIL
            else one.found,
            one.do,
        )
        for one in findings
    ]
