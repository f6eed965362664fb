"""What a slot and its sink ask before the first record: over a long link each wait counts."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.consumer.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.metadata.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read import loss_detection, slot_reader, slot_start
from sparkmirror.data.read.first_positions import first_positions
from sparkmirror.data.read.loss_detection import judge
from sparkmirror.data.read.resume import Resumed
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.read.target_loss import Verdict
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    encode_metadata,
)
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings, ProduceSettings
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.log_view import LogView
from sparkmirror.wire.produce.producer import Producer
from tests.unit.config_files import BASE, load_flow

HOST = "127.0.0.1"
TP = TopicPartition("t", 0)
API_VERSIONS = 18
STORAGE_ERROR = 56
# Without tagged fields, which this broker does not write.
VERSIONS = {3: 8, 10: 2, 9: 5, 2: 5, 23: 3, 22: 1}
NAMES = {3: "Metadata", 10: "FindCoordinator", 9: "OffsetFetch", 2: "ListOffsets",
         23: "OffsetForLeaderEpoch", 22: "InitProducerId", 18: "CONNECT"}  # fmt: skip
METADATA_OF_POSITION = encode_metadata(
    PositionMetadata(Mark("cluster", "", 3), TargetMark("cluster", "", 3, 40), 40, 7)
)


class Cluster:
    """One broker that leads and coordinates all there is; its logs hold offsets 0 to 39.

    ``asked``: number of the connection and name of each request. ``known``: whether the group has
    a position. ``failing``: requests by name of which the next one gets no answer but the end.
    ``lagging``: how many more times the high watermark is behind the leader's log. ``refusing``:
    names of requests that get ``KAFKA_STORAGE_ERROR`` for each partition.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.known = True
        self.lagging = 0
        self.failing: set[str] = set()
        self.refusing: set[str] = set()
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._peers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        self._answers: dict[int, tuple[Any, Callable[[Any], Any]]] = {
            3: (MetadataRequest, self._metadata),
            10: (FindCoordinatorRequest, self._coordinator),
            9: (OffsetFetchRequest, self._positions),
            2: (ListOffsetsRequest, self._offsets),
            23: (OffsetForLeaderEpochRequest, self._epochs),
            22: (InitProducerIdRequest, lambda _: InitProducerIdResponse(
                throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0)),
        }  # fmt: skip

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._peers)

    def open_connections(self) -> int:
        """How many the client has not closed; only to be asked when it is quiet."""
        found = 0
        for peer in self._peers:
            with suppress(OSError):
                peer.setblocking(False)
                try:
                    found += peer.recv(1, socket.MSG_PEEK) != b""
                except BlockingIOError:
                    found += 1
                finally:
                    peer.setblocking(True)
        return found

    def names(self) -> list[str]:
        return [name for _, name in self.asked]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                self._peers.append(peer)
                number = len(self._peers)
                threading.Thread(target=self._serve, args=(peer, number), daemon=True).start()

    def _serve(self, peer: socket.socket, number: int) -> None:
        stream = peer.makefile("rb")
        while head := stream.read(4):
            request = stream.read(struct.unpack(">i", head)[0])
            key, version, correlation = struct.unpack_from(">hhi", request)
            self.asked.append((number, NAMES[key]))
            if NAMES[key] in self.failing:
                self.failing.remove(NAMES[key])
                peer.shutdown(socket.SHUT_RDWR)
                return
            if key == API_VERSIONS:
                row = ApiVersionsResponse.ApiVersion
                keys = [row(api_key=k, min_version=0, max_version=v) for k, v in VERSIONS.items()]
                response: Any = ApiVersionsResponse(error_code=0, api_keys=keys)
            else:
                kind, answer = self._answers[key]
                response = answer(kind.decode(request, version=version, header=True))
            body = struct.pack(">i", correlation) + bytes(response.encode(version))
            peer.sendall(struct.pack(">i", len(body)) + body)

    def _metadata(self, request: Any) -> MetadataResponse:
        topics = MetadataResponse.MetadataResponseTopic
        rows = [
            topics.MetadataResponsePartition(
                error_code=0, partition_index=number, leader_id=1, leader_epoch=3,
                replica_nodes=[], isr_nodes=[], offline_replicas=[],
            )
            for number in range(4)
        ]  # fmt: skip
        broker = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[broker(node_id=1, host=HOST, port=self.port, rack=None)],
            cluster_id="cluster",
            controller_id=1,
            topics=[topics(error_code=0, name=one.name, is_internal=False, partitions=rows)
                    for one in request.topics],
        )  # fmt: skip

    def _coordinator(self, _: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_code=0, error_message=None, node_id=1, host=HOST,
            port=self.port,
        )  # fmt: skip

    def _positions(self, request: Any) -> OffsetFetchResponse:
        rows = OffsetFetchResponse.OffsetFetchResponseTopic
        part = rows.OffsetFetchResponsePartition
        offset, text = (40, METADATA_OF_POSITION) if self.known else (-1, "")
        return OffsetFetchResponse(
            throttle_time_ms=0, error_code=0,
            topics=[rows(name=topic.name, partitions=[
                part(partition_index=number, committed_offset=offset, committed_leader_epoch=-1,
                     metadata=text, error_code=0) for number in topic.partition_indexes])
                for topic in request.topics],
        )  # fmt: skip

    def _offsets(self, request: Any) -> ListOffsetsResponse:
        rows = ListOffsetsResponse.ListOffsetsTopicResponse
        part = rows.ListOffsetsPartitionResponse
        return ListOffsetsResponse(
            throttle_time_ms=0,
            topics=[rows(name=topic.name, partitions=[
                part(partition_index=one.partition_index, timestamp=-1,
                     error_code=STORAGE_ERROR if "ListOffsets" in self.refusing else 0,
                     offset=self._offset(topic.name, one.timestamp), leader_epoch=3)
                for one in topic.partitions]) for topic in request.topics],
        )  # fmt: skip

    def _offset(self, topic: str, timestamp: int) -> int:
        ours = topic in ("t", "A.t")
        if ours and timestamp == -1 and self.lagging:
            self.lagging -= 1
            return 38
        return 40 if ours and timestamp == -1 else 0

    def _epochs(self, request: Any) -> OffsetForLeaderEpochResponse:
        rows = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        return OffsetForLeaderEpochResponse(
            throttle_time_ms=0,
            topics=[rows(topic=topic.topic, partitions=[
                rows.EpochEndOffset(
                    error_code=STORAGE_ERROR if "OffsetForLeaderEpoch" in self.refusing else 0,
                    partition=one.partition, leader_epoch=3, end_offset=40,
                ) for one in topic.partitions])
                for topic in request.topics],
        )  # fmt: skip

    def stop(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for peer in self._peers:
            peer.close()


@pytest.fixture
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    source, target = Cluster(), Cluster()
    try:
        yield source, target
    finally:
        source.stop()
        target.stop()


@pytest.fixture
def flow(tmp_path: Path, clusters: tuple[Cluster, Cluster]) -> FlowSettings:
    loaded = load_flow(tmp_path, BASE)
    source, target = (
        replace(client, bootstrap_servers=(cluster.address,))
        for client, cluster in zip((loaded.source, loaded.target), clusters, strict=True)
    )
    return replace(loaded, source=source, target=target, signed=False)


@pytest.fixture
def reader(flow: FlowSettings) -> Iterator[SlotReader]:
    partitions = [SourcePartition("t", 0, "A.t")]
    (plan,) = plan_slots(partitions, slots_max=1, epoch=0, run_id="r", ends=None, control_offset=0)
    made = SlotReader(flow, plan)
    try:
        yield made
    finally:
        made._connections.close()
        made._watch.close()
        made._frames.close()


def test_a_slot_begins_with_few_waits(
    reader: SlotReader, clusters: tuple[Cluster, Cluster]
) -> None:
    source, target = clusters
    assert reader._start() == {TP: 40}
    # What is asked of one log goes out together: of three and four requests one is waited for.
    logs = ["ListOffsets", "ListOffsets", "OffsetForLeaderEpoch"]
    assert source.names() == ["CONNECT", "Metadata", *logs]
    watch = ["CONNECT", "Metadata", "ListOffsets", "ListOffsets"]
    positions = ["CONNECT", "FindCoordinator", "OffsetFetch"]
    look = ["Metadata", *logs, "OffsetForLeaderEpoch"]
    assert target.names() == [*watch, *positions, *look, "ListOffsets"]
    assert (source.connections, target.connections) == (1, 2)
    # Fetch goes on over those; what was for questions alone is closed.
    assert target.open_connections() == 1
    for connections in (reader._connections, reader._watch.connections):
        connection = connections.connection(1)
        assert connection is not None
        assert connection.socket.gettimeout() == connections.client.request_timeout_ms / 1000
    assert (source.connections, target.connections) == (1, 2)


def test_a_slot_waits_for_followers_before_it_reads_where_the_target_ends(
    reader: SlotReader, clusters: tuple[Cluster, Cluster]
) -> None:
    """What only the leader has is there already, and would be written again."""
    _, target = clusters
    target.lagging = 4  # the look at the log, and three at its end
    assert reader._start() == {TP: 40}
    assert target.lagging == 0
    assert target.names()[-4:] == ["ListOffsets"] * 4


def test_an_end_that_was_acknowledged_never_goes_back(
    reader: SlotReader, clusters: tuple[Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else our own earlier records would later count as those behind the position."""
    monkeypatch.setattr("sparkmirror.data.read.resume._FOLLOWERS_S", 0.0)
    clusters[1].lagging = 1_000  # a follower hangs
    assert reader._start() == {TP: 40}
    assert reader._begins.verdicts[TP].end == 40


def test_routed_records_are_looked_for_nowhere(
    flow: FlowSettings, clusters: tuple[Cluster, Cluster]
) -> None:
    """The position holds; what it says of the target is from a time before the transform."""
    routing = replace(flow, transforms=(TransformSettings("route", ("t",), routes=True),))
    partitions = [SourcePartition("t", 0, "A.t")]
    (plan,) = plan_slots(partitions, slots_max=1, epoch=0, run_id="r", ends=None, control_offset=0)
    made = SlotReader(routing, plan)
    try:
        assert made._start() == {TP: 40}
        assert made._begins.verdicts == {TP: Verdict(40, TargetMark())}
        assert "OffsetForLeaderEpoch" not in clusters[1].names()
    finally:
        made._connections.close()
        made._watch.close()
        made._frames.close()


@pytest.mark.parametrize("name", ["FindCoordinator", "OffsetFetch", "ListOffsets", "Metadata"])
def test_a_connection_that_breaks_is_made_anew(
    name: str, reader: SlotReader, clusters: tuple[Cluster, Cluster]
) -> None:
    _, target = clusters
    reader._connections.refresh()
    target.failing = {name}
    assert reader._start() == {TP: 40}
    assert target.failing == set()
    assert target.connections in (3, 4)
    assert target.open_connections() == 1


def test_a_position_that_waits_for_its_cluster_is_judged_by_new_metadata(
    reader: SlotReader, clusters: tuple[Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaders and topic ids that were there before the positions were say nothing about them."""
    _, target = clusters
    looks: list[int] = []
    look = reader._targets.examine

    def broken_once(*arguments: Any) -> Any:
        looks.append(len(target.asked))
        found = look(*arguments)
        if len(looks) == 1:
            raise TimeoutError("not now")
        return found

    monkeypatch.setattr(reader._targets, "examine", broken_once)
    assert reader._start() == {TP: 40}
    assert [target.names()[at] for at in looks] == ["Metadata", "Metadata"]
    assert target.names()[looks[1] - 1] == "OffsetFetch"


@pytest.mark.parametrize("away", [False, True])
def test_after_a_wait_for_the_target_positions_are_judged_by_new_metadata_of_the_source(
    away: bool,
    reader: SlotReader,
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the target is away for an hour, the source's topics may be recreated."""
    source, _ = clusters
    find_out, asked = reader._begins.find_out, []
    errors = iter([Unreachable("no.", where="cluster B"), TimeoutError("not now")])

    def later(connections: ClusterConnections) -> dict[TopicPartition, int]:
        for error in errors:
            raise error
        positions = find_out(connections)
        asked.append(source.names())
        if away:
            source.failing = {"Metadata"}
        return positions

    monkeypatch.setattr(slot_reader, "_TICK_S", 0.0)
    monkeypatch.setattr(reader._begins, "find_out", later)
    assert reader._start() == {TP: 40}
    assert asked == [["CONNECT", "Metadata"]]
    assert source.names()[2] == "Metadata"
    assert ("ListOffsets" in source.names()) is not away
    # Without it, nothing is judged, and so nothing is fetched.
    assert reader._fetcher._states[TP].held is away
    assert reader._fetcher.halts == {}


@pytest.mark.parametrize("lasted_s", [9.0, 29.0])
def test_positions_that_took_long_are_judged_by_new_metadata_of_the_source(
    lasted_s: float,
    reader: SlotReader,
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator may be waited for until the request timeout, without an error."""
    source, _ = clusters
    find_out, now_s = reader._begins.find_out, [100.0]

    def slow(connections: ClusterConnections) -> dict[TopicPartition, int]:
        now_s[0] += lasted_s
        return find_out(connections)

    monkeypatch.setattr(slot_reader, "ticks_s", lambda: now_s[0])
    monkeypatch.setattr(reader._begins, "find_out", slow)
    assert reader._start() == {TP: 40}
    assert source.names()[:2] == ["CONNECT", "Metadata"]
    assert (source.names()[2] == "Metadata") is (lasted_s > 10)


def test_a_partition_without_a_position_asks_for_the_runs_over_one_connection(
    reader: SlotReader, clusters: tuple[Cluster, Cluster]
) -> None:
    source, target = clusters
    target.known = False
    reader._connections.refresh()
    reader._connections.topic_ids["t"] = "id"
    assert reader._start() == {TP: 0}
    assert target.names().count("CONNECT") == 3, "the watch, the questions, the runs"
    assert source.connections == 1


def test_a_producer_goes_on_over_the_connection_that_gave_its_id(
    flow: FlowSettings, clusters: tuple[Cluster, Cluster]
) -> None:
    _, target = clusters
    producer = Producer(ClusterConnections(flow.target, ["A.t"]), ProduceSettings())
    assert producer.ids.identify() == (7, 0)
    producer.connections.refresh_if_due()
    connection = producer.connections.connection(1)
    assert connection is not None
    assert target.asked == [(1, "CONNECT"), (1, "InitProducerId"), (1, "Metadata")]
    producer.close()
    assert connection.socket.fileno() == -1


def test_without_records_since_then_a_partition_begins_at_its_end(
    reader: SlotReader,
    flow: FlowSettings,
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers return -1 for a time after the last record."""
    monkeypatch.setattr(clusters[0], "_offset", lambda _, when: 40 if when == -1 else -1)
    wanted = replace(
        flow,
        fetch=replace(flow.fetch, auto_offset_reset="by_duration:PT1H"),
        source=replace(flow.source, request_timeout_ms=500),
    )
    assert first_positions(wanted, reader._fetcher, [TP], stable=False) == {TP: 40}


def test_what_is_written_while_its_beginning_is_looked_for_is_mirrored(
    reader: SlotReader,
    flow: FlowSettings,
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each question is answered, and then a record is written."""
    ends = itertools.count(40)

    def offset(_: object, when: int) -> int:
        end = next(ends)
        return end if when == -1 else -1

    monkeypatch.setattr(clusters[0], "_offset", offset)
    wanted = replace(flow, fetch=replace(flow.fetch, auto_offset_reset="by_duration:PT1H"))
    assert first_positions(wanted, reader._fetcher, [TP], stable=False) == {TP: 40}


@pytest.mark.parametrize(("epoch", "kept"), [(-1, -1), (4, 4)])
def test_a_position_behind_what_the_target_has_is_judged_by_its_own_epoch(
    epoch: int, kept: int, reader: SlotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the committed position may end before it, which would look like a truncation."""
    monkeypatch.setattr(slot_start, "resume", lambda *_: {TP: Resumed(60, 60, epoch)})
    assert reader._start() == {TP: 60}
    mark = reader._losses.marks[TP]
    assert mark == Mark("cluster", "", kept)
    view = LogView(0, 90, 3, 50) if epoch < 0 else LogView(0, 90, 4, 90)
    assert judge(TP, 60, mark, mark, view) is None
    (begun,) = reader._begins.partitions({TP: 60}, reader._marks_before)
    assert begun.mark == mark


@pytest.mark.parametrize("name", ["ListOffsets", "OffsetForLeaderEpoch"])
def test_a_log_that_cannot_be_checked_for_long_is_told(
    name: str,
    reader: SlotReader,
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the partition would wait without end, and nobody would know."""
    source, _ = clusters
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr(loss_detection, "time", clock)
    monkeypatch.setattr(slot_reader, "_LOOK_AGAIN_S", 0.0)
    source.refusing = {name}
    reader._start()
    now[0] += 29.0
    reader._examine([TP])
    assert reader._fetcher.halts == {}
    now[0] += 3.0
    reader._examine([TP])
    halt = reader._fetcher.halts[TP]
    assert (halt.code, halt.retriable) == ("KAFKA_STORAGE_ERROR", True)
    assert "t-0" in halt.reason
    assert "for 32 s" in halt.reason
    # A look without an answer does not lift it.
    monkeypatch.setattr(loss_detection, "describe_logs", lambda *_, **__: {})
    now[0] += 1.0
    reader._examine([TP])
    assert "for 33 s" in reader._fetcher.halts[TP].reason
    monkeypatch.undo()
    source.refusing = set()
    reader._fetcher.send()
    assert reader._fetcher.held == [TP]
    reader._examine([TP])
    assert reader._fetcher.halts == {}
    assert not reader._fetcher._states[TP].held
    assert reader._losses._refused == {}
