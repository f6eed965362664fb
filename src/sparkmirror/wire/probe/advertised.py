"""The paths to a cluster: to its bootstrap servers, and to the addresses that they advertise.

The classic failure: a bootstrap server responds, and names brokers that this machine cannot reach.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sparkmirror.errors import Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.cluster.metadata import split_address
from sparkmirror.wire.probe.broker_path import (
    DNS,
    TCP,
    BrokerPath,
    Resolver,
    Step,
    check_path,
    resolve,
)

__all__ = ["ClusterPaths", "advertised_failure", "check_paths", "why_unusable"]

_THREADS_MAX = 64
_SHOWN_MAX = 3
_NAME = (
    "Set advertised.listeners of this broker to a name or IP address that is known here, or add a "
    "DNS forwarder (or a line in /etc/hosts) for it."
)
_PORT = (
    "Check advertised.listeners of this broker (host and port must lead to its listener) and the "
    "firewalls between here and there."
)


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The paths to one cluster. ``brokers``: (node id, path) of each advertised address.

    ``reached``: the first bootstrap server that returned metadata; if None, ``brokers`` is empty.
    """

    bootstrap: tuple[BrokerPath, ...]
    reached: BrokerPath | None
    brokers: tuple[tuple[int, BrokerPath], ...]


def check_paths(
    client: ClusterClient, *, timeout_s: float, resolver: Resolver = resolve
) -> ClusterPaths:
    """Check all bootstrap servers in parallel, then all advertised addresses in parallel.

    Takes about ``timeout_s`` in total; never raises.
    """
    deadline = time.monotonic() + timeout_s
    bootstrap = [split_address(server) for server in client.bootstrap_servers]
    ways = _at_once(client, bootstrap, timeout_s / 2, resolver)
    reached = next((way for way in ways if way.whole), None)
    if reached is None or reached.cluster is None:
        return ClusterPaths(tuple(ways), None, ())
    known = {(way.host, way.port): way for way in ways}
    brokers = reached.cluster.brokers
    addresses = dict.fromkeys((broker.host, broker.port) for broker in brokers)
    missing = [address for address in addresses if address not in known]
    known |= {
        (way.host, way.port): way
        for way in _at_once(client, missing, deadline - time.monotonic(), resolver)
    }
    named = tuple((broker.node, known[broker.host, broker.port]) for broker in brokers)
    return ClusterPaths(tuple(ways), reached, named)


def _at_once(
    client: ClusterClient,
    addresses: Sequence[tuple[str, int]],
    timeout_s: float,
    resolver: Resolver,
) -> list[BrokerPath]:
    return of_each(
        lambda at: check_path(client, *at, timeout_s=timeout_s, resolver=resolver),
        addresses,
        at_most=_THREADS_MAX,
    )


def advertised_failure(node: int, way: BrokerPath, step: Step) -> tuple[str, str]:
    """(what is wrong with the address that broker ``node`` advertises, what to do about it)."""
    verb = ", which " if step.name == DNS else ": "
    found = f"broker {node} advertises {way.host}:{way.port}{verb}{step.found}"
    if step.name not in (DNS, TCP) or "DNS servers" in step.do:
        return found, step.do
    return found, _NAME if step.name == DNS else f"{step.do} {_PORT}"


def why_unusable(client: ClusterClient, timeout_s: float) -> Unreachable | None:
    """Why a cluster cannot be used from here although a bootstrap server responds.

    None if a broker accepts connections at its advertised address, or if no bootstrap server
    responds: then the cause is another one, and may be temporary.
    """
    failures: list[tuple[str, str]] = []
    for node, way in check_paths(client, timeout_s=timeout_s).brokers:
        step = way.steps[-1]
        if way.whole or step.name not in (DNS, TCP) or step.outcome != "fail":
            return None
        failures.append(advertised_failure(node, way, step))
    if not failures:
        return None
    told = "; ".join(found for found, _ in failures[:_SHOWN_MAX])
    more = f"; and {len(failures) - _SHOWN_MAX} more" if len(failures) > _SHOWN_MAX else ""
    return Unreachable(
        f"a bootstrap server answers, but none of the brokers that it names can be reached: {told}"
        f"{more}.",
        where=f"cluster {client.alias}",
        do=failures[0][1],
    )
