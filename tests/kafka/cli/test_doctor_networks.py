"""The doctor in a network of its own, beside another one whose names and routes are not ours.

The source's broker is in the west, the target's and the mirror's machine in the east. A cable leads
from one to the other; what lies behind its western end is the west's own business.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.clusters.networks import Broker, Network, connected, needs_namespaces
from tests.patience import others_per_core

LIMIT_S = 15.0
WEST, EAST = "10.77.1.1", "10.77.1.2"
NO_ROUTE, ONE_WAY = "10.77.9.1", "10.77.9.2"
"""Addresses in the west: the east knows no way to the first; from the second none leads back."""
NAME = "wn1-src.west.test"
# The broker's ports, and what is advertised there.
GOOD, NAMED, UNROUTED, ANSWERLESS = 9_092, 9_093, 9_094, 9_095


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Network, Network]]:
    needs_namespaces()
    directory = tmp_path_factory.mktemp("networks")
    cable = (f"{WEST}/24", f"{EAST}/24")
    with connected(directory, cable, ({NAME: WEST}, {})) as (west, east):
        for address in (NO_ROUTE, ONE_WAY):
            west.ip("address", "add", f"{address}/32", "dev", "lo")
        # What the east sends there comes from an address that the west has no route to.
        east.ip("address", "add", "10.77.8.1/32", "dev", "lo")
        east.ip("route", "add", f"{ONE_WAY}/32", "via", WEST, "src", "10.77.8.1")
        listeners = {
            GOOD: f"{WEST}:{GOOD}",
            NAMED: f"{NAME}:{NAMED}",
            UNROUTED: f"{NO_ROUTE}:{UNROUTED}",
            ANSWERLESS: f"{ONE_WAY}:{ANSWERLESS}",
        }
        west.start(Broker("W", listeners, topic="orders"))
        east.start(Broker("E", {GOOD: f"{EAST}:{GOOD}"}))
        yield west, east


def examined(network: Network, directory: Path, port: int) -> dict[str, Any]:
    """What the doctor says from a machine in ``network`` of a source at ``port`` of the west."""
    file = directory / "mm2.properties"
    file.write_text(
        f"clusters = A, B\nA.bootstrap.servers = {WEST}:{port}\n"
        f"B.bootstrap.servers = {EAST}:{GOOD}\nA->B.enabled = true\nA->B.topics = orders\n"
        "replication.factor = 1\noffset.storage.replication.factor = 1\n"
        "offset-syncs.topic.replication.factor = 1\ncheckpoints.topic.replication.factor = 1\n"
    )
    ended = network.sparkmirror("doctor", str(file), "--format", "json")
    assert ended.seconds < LIMIT_S * others_per_core()
    assert ended.code in (0, 1), ended.errors
    (flow,) = json.loads(ended.output)["flows"]
    assert (ended.code == 1) is (flow["counts"]["fail"] > 0)
    return dict(flow)


def failed(flow: dict[str, Any]) -> list[dict[str, str]]:
    return [one for one in flow["findings"] if one["level"] == "fail"]


@pytest.mark.more
def test_nothing_fails_where_the_broker_advertises_what_both_sides_reach(
    networks: tuple[Network, Network], tmp_path: Path
) -> None:
    _, east = networks
    assert failed(examined(east, tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("port", "check", "told", "do"),
    [
        (NAMED, "dns", f"broker 1 advertises {NAME}:{NAMED}, which does not resolve here",
         "a DNS forwarder"),
        (UNROUTED, "tcp",
         f"broker 1 advertises {NO_ROUTE}:{UNROUTED}: connecting failed (Network is",
         "Check the routes, network peering or gateway"),
        (ANSWERLESS, "tcp",
         f"broker 1 advertises {ONE_WAY}:{ANSWERLESS}: connecting timed out",
         "firewall"),
    ],
)  # fmt: skip
def test_what_only_the_other_network_can_use(
    networks: tuple[Network, Network], tmp_path: Path, port: int, check: str, told: str, do: str
) -> None:
    west, east = networks
    (found,) = failed(examined(east, tmp_path, port))
    assert found["check"] == check
    assert found["subject"].startswith("cluster A, broker 1 at ")
    assert told in found["found"]
    assert do in found["do"]
    assert "advertised.listeners" in found["do"]
    # The same question from the broker's own network.
    assert failed(examined(west, tmp_path, port)) == []


@pytest.mark.parametrize("port", [pytest.param(NAMED, marks=pytest.mark.more), UNROUTED])
def test_who_does_not_ask_the_doctor_is_told_soon_too(
    networks: tuple[Network, Network], tmp_path: Path, port: int
) -> None:
    """Not after the 30 s of request.timeout.ms, and not without the address."""
    _, east = networks
    (found,) = failed(examined(east, tmp_path, port))
    for command in ("plan", "lag"):
        ended = east.sparkmirror(command, str(tmp_path / "mm2.properties"))
        assert ended.code == 3
        assert ended.errors.count("error:") == 1
        assert found["found"] in ended.errors
        assert found["do"] in ended.errors
        assert ended.seconds < LIMIT_S * others_per_core()
