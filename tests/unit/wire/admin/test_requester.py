"""The driver's requests: to the right broker, over shared connections, retried in time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataRequest

from sparkmirror.errors import (
    ClusterError,
    MirrorError,
    QuotaExceeded,
    Unreachable,
    Unsupported,
)
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.probe import free_ports
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.admin.messages import error_code
from sparkmirror.wire.admin.requester import CONTROLLER, Requester
from sparkmirror.wire.cluster import broker_pool
from sparkmirror.wire.cluster.views import NewTopic
from tests.certificates import Authority
from tests.unit.wire.fake_broker import FakeBroker, metadata

METADATA, FIND_COORDINATOR, LIST_GROUPS = 3, 10, 16
CREATE_TOPICS, CREATE_PARTITIONS = 19, 37
QUOTA = 89


class World:
    """Two brokers, a requester to them, and what they answer."""

    def __init__(self) -> None:
        self.groups: dict[int, list[Any]] = {}
        self.controller = 1
        self.coordinator = 1
        self.nodes = {
            node: FakeBroker(lambda *asked, node=node: self.said(node, *asked)) for node in (0, 1)
        }
        self.named = dict(self.nodes)
        servers = tuple(broker.address for broker in self.nodes.values())
        self.client = ClusterClient(
            "A", servers, "test", request_timeout_ms=5_000, retry_backoff_ms=10
        )
        self.made: list[Requester] = []

    def said(self, node: int, key: int, _version: int) -> Any:
        if key == METADATA:
            return metadata(self.named, controller=self.controller)
        if key == FIND_COORDINATOR:
            return FindCoordinatorResponse(
                throttle_time_ms=0, error_code=0, error_message=None, node_id=self.coordinator,
                host="x", port=1,
            )  # fmt: skip
        answers = self.groups.get(node, [])
        return answers.pop(0) if answers else groups()

    def requester(self, **changed: Any) -> Requester:
        self.made.append(Requester(replace(self.client, **changed)))
        return self.made[-1]

    def stop(self) -> None:
        for one in self.made:
            one.close()
        for broker in {*self.nodes.values(), *self.named.values()}:
            broker.stop()


def groups(*, error: int = 0, throttle_ms: int = 0) -> Any:
    return ListGroupsResponse(throttle_time_ms=throttle_ms, error_code=error, groups=[])


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.stop()


def ask(link: Requester, **more: Any) -> Any:
    return link.request(ListGroupsRequest, "listing groups", check=error_code, **more)


def asked(world: World, node: int) -> int:
    return world.nodes[node].asked.count(LIST_GROUPS)


@pytest.mark.parametrize("for_good", [False, True])
def test_what_comes_after_the_end_connects_nowhere(for_good: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        link = Requester(ClusterClient("A", (address,), "test", request_timeout_ms=1_500))
        link.close(for_good=for_good)
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            link.request(lambda: MetadataRequest(topics=[]), "asking")
        took_s = time.monotonic() - began_s
        link.close()
        server.settimeout(0.2)
        if for_good:
            assert took_s < 1
            with pytest.raises(TimeoutError):
                server.accept()
        else:
            server.accept()[0].close()  # a later request opens connections again


def test_the_end_cuts_a_pause_short(world: World) -> None:
    link = world.requester()
    assert link.pause(0.0)
    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(link.pause, 600.0)
        while not pausing.done():  # it may not have begun to wait yet
            link.close()
            wait([pausing], 0.01)
        assert not pausing.result()
    link.close(for_good=True)
    assert not link.pause(600.0)


def test_each_request_goes_to_its_broker(world: World) -> None:
    link = world.requester()
    for node in (0, 1, 1):
        ask(link, node=node)
    assert (asked(world, 0), asked(world, 1)) == (1, 2)
    world.controller = world.coordinator = 0
    ask(link, node=CONTROLLER)
    assert asked(world, 0) == 2
    ask(link, group="g")
    assert asked(world, 0) == 3
    assert sum(broker.asked.count(FIND_COORDINATOR) for broker in world.nodes.values()) == 1
    ask(link, group="g")
    assert sum(broker.asked.count(FIND_COORDINATOR) for broker in world.nodes.values()) == 1


def test_all_threads_share_one_connection_to_each_broker(world: World) -> None:
    link = world.requester()
    ask(link)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(20):
                ask(link, node=(number + n) % 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert asked(world, 0) + asked(world, 1) == 161
    assert [broker.accepted for broker in world.nodes.values()] == [1, 1]


@pytest.mark.parametrize("code", [14, 15, 16, 41])
def test_what_a_new_lookup_may_cure_is_tried_again(world: World, code: int) -> None:
    world.groups[1] = [groups(error=code)]
    ask(world.requester(), node=CONTROLLER)
    assert asked(world, 1) == 2
    assert sum(broker.asked.count(METADATA) for broker in world.nodes.values()) >= 3


def test_a_coordinator_that_moved_is_looked_up_again(world: World) -> None:
    link = world.requester()
    ask(link, group="g")
    world.groups[1] = [groups(error=16)]
    world.coordinator = 0
    ask(link, group="g")
    assert (asked(world, 0), asked(world, 1)) == (1, 2)


def test_an_error_that_stays_is_told_at_once(world: World) -> None:
    world.groups = {0: [groups(error=87)] * 9, 1: [groups(error=87)] * 9}
    began_s = time.monotonic()
    with pytest.raises(ClusterError, match="listing groups failed") as caught:
        ask(world.requester())
    assert caught.value.where == "cluster A"
    assert time.monotonic() - began_s < 2


def test_a_broker_that_hung_up_meanwhile_is_connected_to_again(world: World) -> None:
    link = world.requester()
    for _ in range(3):
        ask(link, node=0)
        ask(link, node=1)
        for broker in world.nodes.values():
            broker.hang_up()
        time.sleep(0.05)
    assert asked(world, 0) == asked(world, 1) == 3


def test_a_connection_that_breaks_costs_one_more_try(world: World) -> None:
    world.groups = {0: [None], 1: [None]}
    ask(world.requester())
    assert 2 <= asked(world, 0) + asked(world, 1) <= 3


def test_a_request_to_a_named_broker_is_not_tried_again(world: World) -> None:
    world.groups = {0: [None]}
    with pytest.raises(Unreachable, match="listing groups failed: no answer"):
        ask(world.requester(), node=0)
    assert asked(world, 0) == 1


def test_without_an_answer_it_ends_in_time_and_tries_anew_later(world: World) -> None:
    link = world.requester(request_timeout_ms=30_000)
    ask(link, node=0)
    world.groups = {0: [...]}
    before = world.nodes[0].accepted
    began_s = time.monotonic()
    with pytest.raises(Unreachable, match="no answer"):
        ask(link, node=0, timeout_ms=300)
    assert 0.25 < time.monotonic() - began_s < 15
    ask(link, node=0)
    assert world.nodes[0].accepted == before + 1, "a connection on which the broker hangs is left"


def test_an_api_that_the_broker_lacks_is_named(world: World) -> None:
    for broker in world.nodes.values():
        del broker.versions[LIST_GROUPS]
    with pytest.raises(Unsupported, match="listing groups needs an API") as caught:
        ask(world.requester())
    assert "ListGroupsRequest" in caught.value.what
    assert caught.value.do


def test_a_broker_that_is_new_is_learned(world: World) -> None:
    link = world.requester()
    ask(link, node=0)
    world.named[7] = FakeBroker(lambda *asked: world.said(7, *asked))
    ask(link, node=7)
    assert world.named[7].asked.count(LIST_GROUPS) == 1
    with pytest.raises(Unreachable, match="no answer"):
        ask(link, node=99)


def test_a_broker_that_moved_is_found_again(world: World) -> None:
    link = world.requester()
    ask(link, node=0)
    moved = FakeBroker(lambda *asked: world.said(0, *asked))
    world.nodes[0].stop()
    world.named = {0: moved, 1: world.nodes[1]}
    with pytest.raises(Unreachable):
        ask(link, node=0)
    ask(link, node=0)
    assert moved.asked.count(LIST_GROUPS) == 1


def test_another_broker_that_is_silent_keeps_no_request_from_its_broker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses are looked up anew now and then, at any broker. Those of before may still do."""
    monkeypatch.setattr(broker_pool, "_LEARN_S", 0.3)
    monkeypatch.setattr("random.shuffle", lambda _: None)
    link = world.requester(metadata_age_ms_max=0)
    for node in (1, 0):
        ask(link, node=node)
    said = world.said
    world.said = lambda node, key, _: ... if (node, key) == (0, METADATA) else said(node, key, _)  # type: ignore[method-assign]
    ask(link, node=1, timeout_ms=5_000)
    assert world.nodes[0].asked[-1] == METADATA
    assert asked(world, 1) == 2


def test_a_server_that_does_not_answer_delays_the_others_by_a_moment(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = f"127.0.0.1:{silent.getsockname()[1]}"
        gone = f"127.0.0.1:{free_ports(1)[0]}"
        for _ in range(4):
            servers = (hangs, gone, world.nodes[0].address)
            link = world.requester(bootstrap_servers=servers, request_timeout_ms=30_000)
            began_s = time.monotonic()
            ask(link)
            assert time.monotonic() - began_s < 8, "connecting may take ten seconds"
            link.close()


def test_a_cluster_that_is_away_is_told_after_the_request_timeout() -> None:
    port = free_ports(1)[0]
    link = Requester(ClusterClient("A", (f"127.0.0.1:{port}",), "test", request_timeout_ms=400))
    began_s = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        ask(link)
    assert 0.2 < time.monotonic() - began_s < 10
    assert caught.value.what.startswith("listing groups failed: no answer (127.0.0.1:")
    assert "refused" in caught.value.what
    assert caught.value.where == "cluster A"
    assert "advertised.listeners" in caught.value.do
    link.close()


def test_the_reason_of_an_earlier_attempt_is_told_at_the_end_of_the_time(tmp_path: Path) -> None:
    """The last attempt hangs; the first one showed a certificate of a stranger."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    stranger = Authority("Stranger").certify("broker", "127.0.0.1")
    context.load_cert_chain(stranger.pem_file(tmp_path / "broker.pem"))
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                first = server.accept()[0]
                with contextlib.suppress(OSError):
                    context.wrap_socket(first, server_side=True).close()
                while True:
                    kept.append(server.accept()[0])

        threading.Thread(target=answer, daemon=True).start()
        client = ClusterClient(
            "A",
            (f"127.0.0.1:{server.getsockname()[1]}",),
            "test",
            request_timeout_ms=6_000,
            retry_backoff_ms=10,
            reconnect_backoff_ms=10,
            security_protocol="SSL",
            properties={
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": Authority().pem(),
            },
        )
        link = Requester(client)
        with pytest.raises(ClusterError, match="is not trusted"):
            link.request(lambda: MetadataRequest(topics=[]), "asking")
        link.close()
        assert kept, "it ended before the attempt that hangs"
        server.shutdown(socket.SHUT_RDWR)
    for one in kept:
        one.close()


def test_brokers_that_cannot_be_reached_where_they_say_are_named(world: World) -> None:
    gone = FakeBroker(lambda *_: None)
    gone.stop()
    world.named = {5: gone}
    began_s = time.monotonic()
    with pytest.raises(Unreachable, match="none of the brokers that it names can be reached"):
        ask(world.requester(request_timeout_ms=20_000))
    assert time.monotonic() - began_s < 10


def test_closing_ends_what_other_threads_wait_for(world: World) -> None:
    world.groups = {0: [...], 1: [...]}
    link = world.requester(request_timeout_ms=30_000)
    outcome: list[MirrorError] = []

    def work() -> None:
        try:
            ask(link)
        except MirrorError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 10
    while not asked(world, 0) + asked(world, 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    began_s = time.monotonic()
    link.close()
    thread.join(20)
    assert time.monotonic() - began_s < 15
    assert [type(one) for one in outcome] == [Unreachable]


def test_closing_ends_an_attempt_to_connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        link = Requester(ClusterClient("A", (address,), "test"))

        def close() -> None:
            with silent.accept()[0]:
                link.close()

        threading.Thread(target=close, daemon=True).start()
        began_s = time.monotonic()
        with pytest.raises(Unreachable, match="the connection was closed"):
            ask(link)
        assert time.monotonic() - began_s < 8, "connecting may take ten seconds"


def test_a_throttled_client_pauses(world: World) -> None:
    world.groups = {0: [groups(throttle_ms=300)]}
    link = world.requester()
    ask(link, node=0)
    began_s = time.monotonic()
    ask(link, node=0)
    assert time.monotonic() - began_s > 0.2


# --- quotas on new partitions ---------------------------------------------------------------------


class Creating(World):
    """Each request for new partitions of topic ``t`` gets ``code`` and ``throttle_ms``."""

    def __init__(self, code: int = 0, throttle_ms: int = 0) -> None:
        super().__init__()
        self.code, self.throttle_ms = code, throttle_ms
        for broker in self.nodes.values():
            broker.versions |= {CREATE_TOPICS: (2, 7), CREATE_PARTITIONS: (0, 3)}
        self.cluster = Cluster(self.client)
        self.made.append(self.cluster.requester)

    def said(self, node: int, key: int, _version: int) -> Any:
        row: dict[str, Any] = {"name": "t", "error_code": self.code, "error_message": None}
        head = {"throttle_time_ms": self.throttle_ms}
        if key == CREATE_TOPICS:
            topic = CreateTopicsResponse.CreatableTopicResult(
                **row, topic_id=None, topic_config_error_code=0, num_partitions=1,
                replication_factor=1, configs=[],
            )  # fmt: skip
            return CreateTopicsResponse(**head, topics=[topic])
        if key == CREATE_PARTITIONS:
            result = CreatePartitionsResponse.CreatePartitionsTopicResult(**row)
            return CreatePartitionsResponse(**head, results=[result])
        return super().said(node, key, _version)

    def ask(self, doing: str) -> MirrorError | None:
        if doing == "create":
            return self.cluster.create_topics([NewTopic("t", 1)])["t"].error
        if doing == "try":
            return Inspector(self.cluster).try_create([NewTopic("t", 1)])["t"].error
        return self.cluster.grow_topics({"t": 1})["t"].error


@pytest.mark.parametrize("doing", ["create", "grow", "try"])
def test_a_quota_on_new_partitions_holds_up_no_other_request(doing: str) -> None:
    """Its pause is longer than a request may take. The next one learns the quota again, too."""
    world = Creating(QUOTA, throttle_ms=40_000)
    try:
        for _ in range(2):
            assert isinstance(world.ask(doing), QuotaExceeded)
            assert world.cluster.topics() == {}
            ask(world.cluster.requester, node=1)
    finally:
        world.stop()


def test_requests_for_new_partitions_share_a_connection_of_their_own() -> None:
    world = Creating()
    try:
        assert world.ask("create") is None
        accepted = [broker.accepted for broker in world.nodes.values()]
        for doing in ("grow", "create"):
            assert world.ask(doing) is None
        assert [broker.accepted for broker in world.nodes.values()] == accepted
        one, other = (
            world.cluster.requester.connection(1, time.monotonic() + 5, apart=apart)
            for apart in (True, False)
        )
        assert one is not other
        world.cluster.close()
        assert (one.fileno(), other.fileno()) == (-1, -1)
        assert world.ask("create") is None, "a closed one connects again when it is used again"
    finally:
        world.stop()
