"""Each permission is checked with the client that needs it: `acls needed` names the same one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from sparkmirror.config.clients.sasl import principal_of
from sparkmirror.control.coordination.status import FlowState, FlowStatus
from sparkmirror.control.permissions.needed import needed_permissions
from sparkmirror.control.positions.lag import LagView
from sparkmirror.control.topics.internal_topics import internal_names
from sparkmirror.doctor import examine as examination
from sparkmirror.doctor import executors
from sparkmirror.doctor.finding import Finding, Level
from sparkmirror.doctor.network import Network
from sparkmirror.doctor.rights import check_internal
from sparkmirror.errors import Unsupported
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.internal_topics.remote_names import REMOTE_NAMES_TOPIC
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.wire.admin.inspector import TriedTopic
from sparkmirror.wire.cluster.views import BrokerView, ClusterView, NewTopic, TopicView
from tests.unit.config_files import load_flow

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
# Operation, topic or group, and who: cluster alias and principal.
Asked = tuple[str, str, str, str]


def logins(*scopes: str) -> str:
    """Lines with a user of its own for each scope, such as ``A.consumer``; it has that name."""
    secured = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
    return secured + "".join(
        f'{scope}.sasl.jaas.config={PLAIN} required username="{scope}" password="p";\n'
        for scope in scopes
    )


TOPICS = "topics=t\nheartbeats.replication.enabled=false\n"
EACH = logins(*(f"{alias}.{role}" for alias in "AB" for role in ("consumer", "producer", "admin")))


class Brokers:
    """Both clusters, which allow everything. ``asked``: what they were asked for, and by whom.

    ``there``: topics that exist. ``clients``: who has connected.
    """

    def __init__(self, there: Collection[str]) -> None:
        self.there = there
        self.asked: set[Asked] = set()
        self.clients: list[ClusterClient] = []


class SpiedCluster:
    """A `Cluster` of `Brokers`."""

    brokers: Brokers

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.alias = client.alias
        self.brokers.clients.append(client)

    def note(self, operation: str, *names: str) -> None:
        who = principal_of(self.client)
        assert who is not None
        self.brokers.asked |= {(operation, name, self.alias, who) for name in names}

    def describe(self) -> ClusterView:
        return ClusterView(self.alias, (BrokerView(1, "b", 1, ""),) * 3, 1)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        wanted = self.brokers.there if names is None else set(names) & set(self.brokers.there)
        return {name: TopicView(name, "", 1, 3) for name in wanted}

    def topic_configs(self, names: Iterable[str]) -> dict[str, Mapping[str, object]]:
        return {name: {} for name in names}

    def topic_rights(self, names: Sequence[str]) -> dict[str, frozenset[str]]:
        self.note("ALTER", *names)
        return {name: frozenset({"Alter", "AlterConfigs"}) for name in names}

    def earliest_offsets(self, _: object) -> dict[object, int]:
        return {}

    def close(self) -> None: ...


class SpyingInspector:
    """An `Inspector` of a `SpiedCluster`."""

    def __init__(self, cluster: SpiedCluster) -> None:
        self.cluster = cluster
        self.alias = cluster.alias

    def readable(self, topics: Iterable[str]) -> dict[str, bool]:
        names = list(topics)
        self.cluster.note("READ", *names)
        return dict.fromkeys(names, True)

    def writable(self, topics: Iterable[str]) -> dict[str, bool]:
        names = list(topics)
        self.cluster.note("WRITE", *names)
        return dict.fromkeys(names, True)

    def try_create(self, topics: Sequence[NewTopic]) -> dict[str, TriedTopic]:
        self.cluster.note("CREATE", *(topic.name for topic in topics))
        return {topic.name: TriedTopic(topic.name) for topic in topics}

    def may_transact(self, transactional_id: str) -> bool:
        self.cluster.note("WRITE", transactional_id.removesuffix("0"))  # the right is for a prefix
        return True

    def has_groups(self) -> bool:
        return True

    def group_rights(self, group: str) -> frozenset[str]:
        self.cluster.note("READ", group)
        return frozenset({"Read", "Describe"})

    def broker_configs(self) -> dict[int, dict[str, str]]:
        return {}

    def round_trips_ms(self) -> dict[int, float]:
        return {1: 0.1}

    def clock_ms(self, _: object) -> tuple[float, float]:
        return 0.0, 0.0

    def newest_times_ms(self, _: object) -> None:
        raise Unsupported("an old broker.")

    sizes = newest_times_ms


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers({"t"})

    class Cluster(SpiedCluster):
        brokers = found

    def usable(client: ClusterClient, **_: object) -> Network:
        return Network(client, (), ClusterView(client.alias, (), 1), usable=True)

    def status(target: SpiedCluster, flow: FlowSettings, _: int) -> FlowStatus:
        target.note("READ", control_topic(flow))
        return FlowStatus(flow.name, FlowState.NEVER_RAN)

    def lag(
        source: SpiedCluster, target: SpiedCluster, flow: FlowSettings, *, started: bool
    ) -> LagView:
        assert started
        source.note("READ", "t")  # the time of the next record
        target.note("READ", flow.position_group)
        return LagView(flow.name, flow.position_group, target.alias, ())

    def names(target: SpiedCluster, *_: object) -> dict[str, str]:
        target.note("READ", REMOTE_NAMES_TOPIC)
        return {}

    monkeypatch.setattr(examination, "Cluster", Cluster)
    monkeypatch.setattr(examination, "Inspector", SpyingInspector)
    monkeypatch.setattr(examination, "explore", usable)
    monkeypatch.setattr(examination, "observe_status", status)
    monkeypatch.setattr(examination, "observe_flow", lag)
    monkeypatch.setattr(examination, "look_at_names", names)
    return found


def problems(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Warnings and failures by check."""
    return {one.check: one for one in findings if one.level in (Level.WARN, Level.FAIL)}


def needed(flow: FlowSettings, *operations: str) -> set[Asked]:
    """What ``acls needed`` names for topics, transactions and the group of positions."""
    found = needed_permissions(MirrorSettings((flow,), ()), lambda one: principal_of(one) or "")
    return {
        (one.binding.operation, one.binding.name, one.client.alias, one.binding.principal)
        for one in found
        if one.binding.operation in operations
        and (one.binding.resource_type != "GROUP" or one.binding.name == flow.position_group)
    }


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "offset-syncs.topic.location=target\n",
        "offset-syncs.topic.location=target\nB.exactly.once.source.support=enabled\n",
        "offset-syncs.topic.location=target\n" + logins("A->B.target.producer"),
        "offset-syncs.topic.location=target\n" + logins("A->B.target.consumer"),
        "sync.group.offsets.enabled=true\n",
        "emit.checkpoints.enabled=false\n",
        "emit.offset-syncs.enabled=false\n",
        "sparkmirror.topics.map = t => u\n",
    ],
)
def test_each_right_is_asked_for_by_who_needs_it(
    tmp_path: Path, brokers: Brokers, lines: str
) -> None:
    flow = load_flow(tmp_path, f"{TOPICS}{EACH}{lines}")
    findings = examination.examine(flow)
    assert {one.level for one in findings} <= {Level.OK, Level.SKIP}, findings
    asked = {one for one in brokers.asked if one[0] != "ALTER"}
    assert asked == needed(flow, "READ", "WRITE", "CREATE")


def test_clients_with_the_same_settings_share_a_connection(
    tmp_path: Path, brokers: Brokers
) -> None:
    examination.examine(load_flow(tmp_path, f"{TOPICS}{logins('A', 'B')}"))
    assert sorted(client.alias for client in brokers.clients) == ["A", "B"]


def test_who_changes_topics_is_the_admin(tmp_path: Path, brokers: Brokers) -> None:
    brokers.there = {"t", "A.t"}
    examination.examine(load_flow(tmp_path, f"{TOPICS}{EACH}"))
    assert {one for one in brokers.asked if one[0] == "ALTER"} == {
        ("ALTER", "A.t", "B", "User:B.admin")
    }


@pytest.mark.parametrize("role", ["consumer", "producer", "admin"])
def test_a_cluster_is_left_out_when_one_of_its_logins_is_refused(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    def refusing(client: ClusterClient, **_: object) -> Network:
        usable = principal_of(client) != f"User:A.{role}"
        return Network(client, (), ClusterView(client.alias, (), 1), usable=usable)

    monkeypatch.setattr(examination, "explore", refusing)
    findings = examination.examine(load_flow(tmp_path, f"{TOPICS}{EACH}"))
    assert [one.subject for one in findings if one.level is Level.SKIP] == ["cluster A"]
    assert {client.alias for client in brokers.clients} == {"B"}


def test_checkpoints_that_cannot_be_read_are_no_failure(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are mirrored without them: all else is checked, also if the login is refused."""
    lines = f"{TOPICS}{EACH}{logins('A->B.target.consumer')}sync.group.offsets.enabled=true\n"
    flow = load_flow(tmp_path, lines)
    who, topics = "User:A->B.target.consumer", "cluster B, topic A.checkpoints.internal"

    class Denying(SpyingInspector):
        def readable(self, topics: Iterable[str]) -> dict[str, bool]:
            denied = principal_of(self.cluster.client) in (who, "User:B.admin")
            return dict.fromkeys(super().readable(topics), not denied)

    monkeypatch.setattr(examination, "Inspector", Denying)
    found = problems(examination.examine(flow))
    assert set(found) == {"group-topics", "commit"}
    assert {one.level for one in found.values()} == {Level.WARN}
    assert found["group-topics"].subject == topics
    assert "lacks Read on 1 of 1 topics" in found["group-topics"].found
    assert "offsets of groups cannot be committed" in found["commit"].found
    assert "Read on Topic A.t" in found["commit"].do

    def refusing(client: ClusterClient, **_: object) -> Network:
        usable = principal_of(client) != who
        return Network(client, (), ClusterView(client.alias, (), 1), usable=usable)

    monkeypatch.setattr(examination, "Inspector", SpyingInspector)
    monkeypatch.setattr(examination, "explore", refusing)
    findings = examination.examine(flow)
    assert problems(findings) == {}
    (skipped,) = [one for one in findings if one.check == "group-topics" and "B" in one.subject]
    assert skipped.level is Level.SKIP
    assert skipped.subject == topics
    assert "login" in skipped.do


def test_executors_try_each_login_that_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the consumer and the producer, and that which writes offset syncs."""
    tried: list[str | None] = []

    def exploring(client: ClusterClient, **_: object) -> Network:
        tried.append(principal_of(client))
        return Network(client, (), None, usable=True)

    monkeypatch.setattr(executors, "explore", exploring)
    for lines, expected in (
        (EACH, ["User:A.consumer", "User:B.producer", "User:A.producer"]),
        (f"{EACH}emit.offset-syncs.enabled=false\n", ["User:A.consumer", "User:B.producer"]),
        (logins("A", "B"), ["User:A", "User:B"]),
    ):
        flow = load_flow(tmp_path, f"{TOPICS}{lines}")
        monkeypatch.setattr(executors, "decode_flow", lambda _, flow=flow: flow)
        tried.clear()
        executors.explore_from_here('{"A->B": ""}')
        assert tried == expected


def test_internal_topics_that_exist_are_not_tried(tmp_path: Path, brokers: Brokers) -> None:
    flow = load_flow(tmp_path, f"{TOPICS}sparkmirror.topics.map = t => u\n{EACH}")
    brokers.there = {"t", *internal_names(flow)}
    examination.examine(flow)
    tried = {name for operation, name, _, _ in brokers.asked if operation == "CREATE"}
    assert "u" in tried
    assert not tried & set(internal_names(flow))


def test_what_commits_and_transactions_need_is_named(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Denying(SpyingInspector):
        def readable(self, topics: Iterable[str]) -> dict[str, bool]:
            return {name: name != "A.t" for name in super().readable(topics)}

        def may_transact(self, _: str) -> bool:
            return False

    monkeypatch.setattr(examination, "Inspector", Denying)
    flow = load_flow(tmp_path, f"{TOPICS}{EACH}B.exactly.once.source.support=enabled\n")
    found = problems(examination.examine(flow))
    assert set(found) == {"commit", "transactions"}
    assert {one.level for one in found.values()} == {Level.FAIL}
    assert found["commit"].subject == "cluster B, topic A.t"
    assert "positions cannot be committed" in found["commit"].found
    assert "Read on Topic A.t" in found["commit"].do
    assert "Write on all TransactionalIds that begin with __mirror.A->B-" in (
        found["transactions"].do
    )


def test_internal_topics_that_the_admin_may_not_see_are_no_failure(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may create one learns that it exists: a start does, too, and goes on."""
    flow = load_flow(tmp_path, f"{TOPICS}sparkmirror.topics.map = t => u\n{EACH}")
    brokers.there = internal_names(flow)

    class Admin(SpyingInspector):
        def try_create(self, topics: Sequence[NewTopic]) -> dict[str, TriedTopic]:
            return {one.name: TriedTopic(one.name, existed=True) for one in topics}

    hidden = Admin(examination.Cluster(flow.target_admin))  # type: ignore[arg-type]
    monkeypatch.setattr(hidden.cluster, "topics", lambda _: {})
    writer = SpyingInspector(examination.Cluster(flow.target))  # type: ignore[arg-type]
    (found,) = check_internal(hidden, writer, flow)  # type: ignore[arg-type]
    assert found.level is Level.WARN
    assert "lacks Describe" in found.found
    assert "Describe on Topic mm2-" in found.do
