"""The network between a machine and a cluster: every bootstrap server, every advertised address.

The classic failure: a bootstrap server answers, and names brokers that this machine cannot reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.doctor.finding import Finding, Level
from sparkmirror.model import ClusterClient
from sparkmirror.wire.advertised import advertised_failure, walk_all
from sparkmirror.wire.views import ClusterView
from sparkmirror.wire.walk import DNS, KAFKA, LOGIN, TCP, TLS, Resolver, Step, Way, resolve

__all__ = ["Network", "explore", "findings_of", "way_of"]

_TRIED = {
    DNS: "resolve the name",
    TCP: "open a TCP connection",
    TLS: "shake hands with TLS and check the certificate",
    KAFKA: "ask for API versions and metadata",
    LOGIN: "log in",
}
_LEVELS = {"ok": Level.OK, "warn": Level.WARN, "fail": Level.FAIL}


@dataclass(frozen=True, slots=True)
class Network:
    """What the way to one cluster is like. ``view``: its brokers as advertised, None: not reached.

    ``usable``: whether any advertised broker answers; without one nothing else can be asked.
    """

    client: ClusterClient
    findings: tuple[Finding, ...]
    view: ClusterView | None
    usable: bool


def way_of(client: ClusterClient) -> str:
    """A name for the way that a client takes: where to, and how it logs in."""
    properties = frozenset(client.properties.items())
    return f"{hash((client.bootstrap_servers, client.security_protocol, properties)):x}"


def explore(client: ClusterClient, *, timeout_s: float, resolver: Resolver = resolve) -> Network:
    """Walk to all bootstrap servers at once, then to all advertised addresses at once.

    Takes about ``timeout_s`` in all; never raises.
    """
    ways = walk_all(client, timeout_s=timeout_s, resolver=resolver)
    findings: list[Finding] = []
    for way in ways.bootstrap:
        findings += _of_bootstrap(client.alias, way, other=ways.reached)
    if ways.reached is None:
        return Network(client, tuple(findings), None, usable=False)
    for node, way in ways.brokers:
        findings += findings_of(client.alias, way, node)
    usable = any(way.whole for _, way in ways.brokers)
    return Network(client, tuple(findings), ways.reached.cluster, usable)


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
            found, do = advertised_failure(node, way, step)
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
