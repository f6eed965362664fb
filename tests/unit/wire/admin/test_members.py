"""Members of groups of each protocol, from what coordinators answer; encoded and read again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

from sparkmirror.errors import ClusterError, Denied, Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from sparkmirror.wire.admin.groups import list_groups
from sparkmirror.wire.admin.members import group_members, group_owners
from sparkmirror.wire.admin.requester import error_for
from sparkmirror.wire.cluster.views import GroupMember, GroupOwner, GroupView
from sparkmirror.wire.group.assignors import encode_assignment

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NOT_FOUND, TOPIC_DENIED, GROUP_DENIED = 69, 29, 30
_NO_ID = "00000000-0000-0000-0000-000000000000"
Answer = Any


class Coordinator:
    """A `Requester` to a broker that gives ``answers``; each is encoded and read as from a socket.

    A request that it has no answer for is one that it does not know.
    """

    def __init__(self, *answers: tuple[type, Answer]) -> None:
        self.client = ClusterClient("A", ("x:1",), "c")
        self.answers = dict(answers)
        self.asked: list[str] = []

    def request(
        self, make: Callable[[], Any], doing: str, *, check: Callable[[Any], int], **_: Any
    ) -> Any:
        request = make()
        self.asked.append(request.name)
        if type(request) not in self.answers:
            raise Unsupported(f"{doing} needs an API that this broker does not have.")
        answer = self.answers[type(request)]
        version = request.max_version
        request.encode(version=version)
        found = type(answer).decode(answer.encode(version=version), version=version)
        code = check(found)
        if code:
            raise Denied(f"{doing}: {error_for(code)}")
        return found


def classic(state: str, *members: Any, protocol: str = "consumer", error: int = 0) -> Answer:
    return DescribeGroupsRequest, DescribeGroupsResponse(
        throttle_time_ms=0,
        groups=[
            DescribeGroupsResponse.DescribedGroup(
                error_code=error, error_message=None, group_id="g", group_state=state,
                protocol_type=protocol, protocol_data="range", members=list(members),
                authorized_operations=None,
            )
        ],
    )  # fmt: skip


def classic_member(name: str, *partitions: TopicPartition) -> Any:
    return DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        member_id=name, group_instance_id=None, client_id=f"{name}-client",
        client_host="/10.0.0.1", member_metadata=b"",
        member_assignment=encode_assignment(partitions),
    )  # fmt: skip


def newer(error: int = 0, *members: Any) -> Answer:
    return ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse(
        throttle_time_ms=0,
        groups=[
            ConsumerGroupDescribeResponse.DescribedGroup(
                error_code=error, error_message="why" if error else None, group_id="g",
                group_state="Dead" if error else "Stable", group_epoch=3, assignment_epoch=3,
                assignor_name="uniform", members=list(members), authorized_operations=-(2**31),
            )
        ],
    )  # fmt: skip


def newer_member(name: str, *partitions: TopicPartition, target: tuple[TopicPartition, ...] = ()):
    rows = ConsumerGroupDescribeResponse.DescribedGroup.Member

    def assigned(wanted: tuple[TopicPartition, ...]) -> Any:
        topics = sorted({tp.topic for tp in wanted})
        return SimpleNamespace(
            tags=None,
            topic_partitions=[
                SimpleNamespace(
                    tags=None, topic_id=_NO_ID, topic_name=topic,
                    partitions=[tp.partition for tp in wanted if tp.topic == topic],
                )
                for topic in topics
            ],
        )  # fmt: skip

    return rows(
        member_id=name, instance_id=None, rack_id="r", member_epoch=3, client_id=f"{name}-client",
        client_host="/10.0.0.2", subscribed_topic_names=["a"], subscribed_topic_regex=None,
        assignment=assigned(partitions), target_assignment=assigned(target), member_type=1,
    )  # fmt: skip


def streams(error: int = 0, members: tuple[Any, ...] = (), topology: bool = True) -> Answer:
    rows = StreamsGroupDescribeResponse.DescribedGroup
    info = {"partitions": 2, "replication_factor": 1, "topic_configs": [], "tags": None}
    parts = [
        SimpleNamespace(
            tags=None, subtopology_id="0", source_topics=["a", "b"],
            repartition_sink_topics=["app-repartition"],
            state_changelog_topics=[SimpleNamespace(name="app-store-changelog", **info)],
            repartition_source_topics=[],
        ),
        SimpleNamespace(
            tags=None, subtopology_id="1", source_topics=[], repartition_sink_topics=[],
            state_changelog_topics=[],
            repartition_source_topics=[SimpleNamespace(name="app-repartition", **info)],
        ),
    ]  # fmt: skip
    return StreamsGroupDescribeRequest, StreamsGroupDescribeResponse(
        throttle_time_ms=0,
        groups=[
            rows(
                error_code=error, error_message=None, group_id="g", group_state="Stable",
                group_epoch=2, assignment_epoch=2, members=list(members),
                topology=SimpleNamespace(tags=None, epoch=1, subtopologies=parts)
                if topology
                else None,
                authorized_operations=-(2**31),
            )
        ],
    )  # fmt: skip


def streams_member(name: str, active: dict[str, list[int]], standby: dict[str, list[int]]) -> Any:
    def tasks(wanted: dict[str, list[int]]) -> list[Any]:
        return [
            SimpleNamespace(tags=None, subtopology_id=part, partitions=numbers)
            for part, numbers in wanted.items()
        ]

    assigned = SimpleNamespace(
        tags=None, active_tasks=tasks(active), standby_tasks=tasks(standby), warmup_tasks=[]
    )
    return StreamsGroupDescribeResponse.DescribedGroup.Member(
        member_id=name, member_epoch=2, instance_id=None, rack_id=None, client_id=f"{name}-client",
        client_host="/10.0.0.3", topology_epoch=1, process_id="p",
        user_endpoint=SimpleNamespace(tags=None, host="h", port=65_000), client_tags=[],
        task_offsets=[], task_end_offsets=[], assignment=assigned, target_assignment=assigned,
        is_classic=False,
    )  # fmt: skip


def listed(*rows: tuple[str, str, str, str]) -> Answer:
    """Groups as (name, protocol type, state, group type)."""
    return ListGroupsRequest, ListGroupsResponse(
        throttle_time_ms=0,
        error_code=0,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=name, protocol_type=protocol, group_state=state, group_type=kind
            )
            for name, protocol, state, kind in rows
        ],
    )


def members(*answers: Answer) -> tuple[GroupMember, ...]:
    return group_members(Coordinator(*answers), "g", "Describe")  # type: ignore[arg-type]


def owners(*answers: Answer) -> dict[TopicPartition, GroupOwner]:
    return group_owners(Coordinator(*answers), "g")  # type: ignore[arg-type]


def test_a_classic_group_is_described_by_one_request() -> None:
    coordinator = Coordinator(classic("Stable", classic_member("m", A0, B0), classic_member("n")))
    assert group_members(coordinator, "g", "Describe") == (  # type: ignore[arg-type]
        GroupMember("m-client", "10.0.0.1"),
        GroupMember("n-client", "10.0.0.1"),
    )
    owner = GroupOwner("m", "m-client", "10.0.0.1")
    assert group_owners(coordinator, "g") == {A0: owner, B0: owner}  # type: ignore[arg-type]
    assert set(coordinator.asked) == {"DescribeGroupsRequest"}


def test_a_member_whose_assignment_cannot_be_read_is_a_member_without_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its group's leader has written it. Commands about all groups go on."""
    odd = classic_member("m")
    odd.member_assignment = b"\0"
    answer = classic("Stable", odd, classic_member("n", A0))
    assert members(answer) == (
        GroupMember("m-client", "10.0.0.1"),
        GroupMember("n-client", "10.0.0.1"),
    )
    assert owners(answer) == {A0: GroupOwner("n", "n-client", "10.0.0.1")}
    assert "group g, member m: no assignment: it has no version" in caplog.text


def test_a_classic_group_without_members_is_no_group_of_another_protocol() -> None:
    assert members(classic("Empty")) == ()
    assert owners(classic("Empty")) == {}


def test_workers_of_connect_own_no_partitions() -> None:
    answer = classic("Stable", classic_member("m", A0), protocol="connect")
    assert owners(answer) == {}
    assert members(answer) == (GroupMember("m-client", "10.0.0.1"),)


@pytest.mark.parametrize("unknown", [classic("Dead"), classic("", error=NOT_FOUND)])
def test_members_of_the_consumer_protocol_have_names_and_partitions(unknown: Answer) -> None:
    """What a member has counts, not what it will have when others have given it up."""
    found = newer(0, newer_member("m", A0, B0), newer_member("n", A1, target=(A1, A0)))
    assert members(unknown, found) == (
        GroupMember("m-client", "10.0.0.2"),
        GroupMember("n-client", "10.0.0.2"),
    )
    one, other = (GroupOwner(name, f"{name}-client", "10.0.0.2") for name in "mn")
    assert owners(unknown, found) == {A0: one, B0: one, A1: other}


def test_a_group_of_the_consumer_protocol_without_members() -> None:
    coordinator = Coordinator(classic("Dead"), newer())
    assert group_members(coordinator, "g", "Describe") == ()  # type: ignore[arg-type]
    assert coordinator.asked == ["DescribeGroupsRequest", "ConsumerGroupDescribeRequest"]


def test_members_of_a_streams_group_own_what_their_active_tasks_read() -> None:
    member = streams_member("m", {"0": [0], "1": [0, 1]}, {"0": [1]})
    answers = classic("Dead"), newer(NOT_FOUND), streams(members=(member,))
    assert members(*answers) == (GroupMember("m-client", "10.0.0.3"),)
    owner = GroupOwner("m", "m-client", "10.0.0.3")
    between = [TopicPartition("app-repartition", n) for n in (0, 1)]
    assert owners(*answers) == dict.fromkeys([A0, B0, *between], owner)


def test_a_streams_group_whose_topology_is_not_known_yet() -> None:
    member = streams_member("m", {}, {})
    answers = classic("Dead"), newer(NOT_FOUND), streams(members=(member,), topology=False)
    assert members(*answers) == (GroupMember("m-client", "10.0.0.3"),)
    assert owners(*answers) == {}


def test_a_streams_group_owns_no_more_than_a_cluster_can_have() -> None:
    """Tasks times topics: a small answer could name any number of partitions."""
    member = streams_member("m", {"0": [0] * 2_500_001}, {})
    with pytest.raises(ClusterError, match="group g owns 5000002 partitions"):
        owners(classic("Dead"), newer(NOT_FOUND), streams(members=(member,)))


@pytest.mark.parametrize(
    "answers", [(newer(TOPIC_DENIED),), (newer(NOT_FOUND), streams(TOPIC_DENIED))]
)
def test_hidden_topics_hide_the_members_but_not_that_there_are_some(
    answers: tuple[Answer, ...],
) -> None:
    assert members(classic("Dead"), *answers) == (GroupMember("", ""),)
    with pytest.raises(Denied, match="topics that this client may not describe") as caught:
        owners(classic("Dead"), *answers)
    assert "Describe on all topics" in caught.value.do


def test_a_group_that_may_not_be_described_is_an_error() -> None:
    with pytest.raises(Denied):
        members(classic("Dead"), newer(GROUP_DENIED))


@pytest.mark.parametrize(
    ("state", "kind", "active"),
    [("Stable", "share", True), ("NotReady", "other", True), ("Empty", "share", False),
     ("", "", False)],
)  # fmt: skip
def test_a_group_of_another_kind_has_a_member_without_a_name(
    state: str, kind: str, active: bool
) -> None:
    for missing in ((), (newer(NOT_FOUND),), (newer(NOT_FOUND), streams(NOT_FOUND))):
        rows = listed(("h", "", "Stable", ""), ("g", "", state, kind))
        answers = (classic("Dead"), *missing, rows)
        assert bool(members(*answers)) == active
        assert owners(*answers) == {}


def test_groups_of_consumers_are_listed_whatever_their_protocol() -> None:
    broker = Coordinator(
        listed(
            ("old", "consumer", "Stable", "classic"),
            ("by-hand", "", "Empty", "classic"),
            ("new", "consumer", "Reconciling", "consumer"),
            ("app", "streams", "NotReady", "streams"),
            ("shared", "share", "Stable", "share"),
            ("workers", "connect", "Stable", "classic"),
        )
    )
    leaders = SimpleNamespace(
        metadata=lambda _: SimpleNamespace(brokers=[SimpleNamespace(node_id=1)])
    )
    found = list_groups(broker, leaders)  # type: ignore[arg-type]
    assert found == {
        name: GroupView(name, state)
        for name, state in (
            ("old", "Stable"), ("by-hand", "Empty"), ("new", "Reconciling"), ("app", "NotReady"),
        )
    }  # fmt: skip
