"""The least permissions of a flow, and locks on remote topics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.cli.verbs.acls import _apply
from sparkmirror.cli.verbs.kafka_acls import kafka_acls_commands, lock_text, needed_text, report
from sparkmirror.config.clients.sasl import principal_of
from sparkmirror.control.permissions.acl_lock import LockPlan, plan_lock
from sparkmirror.control.permissions.needed import (
    EVERY,
    Pattern,
    Permission,
    needed_permissions,
    remote_names,
    remote_patterns,
    source_patterns,
)
from sparkmirror.control.topics.internal_topics import internal_names
from sparkmirror.errors import Denied
from sparkmirror.model import MirrorMode
from sparkmirror.settings import (
    CheckpointSettings,
    ClusterClient,
    FaultSettings,
    FlowSettings,
    HeartbeatSettings,
    MirrorSettings,
    OffsetSyncSettings,
    PolicySettings,
    TopicRule,
    TopicSettings,
)
from sparkmirror.transform_settings import SmtSettings, TransformSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.views import AclBinding

A = ClusterClient("A", ("a:1",), "c")
B = ClusterClient("B", ("b:1", "b:2"), "c", security_protocol="SASL_PLAINTEXT")
FLOW = FlowSettings(A, B, A, B, topics=TopicSettings(include=("t",)))


def flow(include: tuple[str, ...] = ("t",), **topics: object) -> FlowSettings:
    settings = {"heartbeats_replication_enabled": False, **topics}
    return replace(FLOW, topics=TopicSettings(include=include, **settings))


def me(client: ClusterClient) -> str:
    return f"User:{client.alias.lower()}"


def permissions(settings: FlowSettings) -> list[Permission]:
    return needed_permissions(MirrorSettings((settings,), ()), me)


def lines(settings: FlowSettings) -> set[tuple[str, str, str, str]]:
    return {
        (one.client.alias, one.binding.resource_type, one.binding.name, one.binding.operation)
        for one in needed_permissions(MirrorSettings((settings,), ()), me)
    }


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("include", "patterns"),
    [
        (("orders",), [Pattern("orders")]),
        ((r"a\.b", "a.b"), [Pattern("a.b")]),
        (("pay.*",), [Pattern("pay", "PREFIXED")]),
        ((r"eu\..*", "eu.x"), [Pattern("eu.", "PREFIXED")]),
        (("a|b.*|b1",), [Pattern("a"), Pattern("b", "PREFIXED")]),
        (("x+",), [EVERY]),
        (("a?b",), [EVERY]),
        (("[ab]", "c"), [EVERY]),
        (("(a|b)c", "c"), [EVERY]),
        ((".*",), [EVERY]),
        ((".*", "a.*"), [EVERY]),
        ((), []),
    ],
)
def test_include_lists_as_acl_patterns(include, patterns):
    assert list(source_patterns(flow(include))) == patterns


def test_remote_names_follow_the_policy():
    wanted = ("a", "b.*")
    assert remote_patterns(flow(wanted)) == (Pattern("A.a"), Pattern("A.b", "PREFIXED"))
    assert remote_patterns(flow((".*",))) == (Pattern("A.", "PREFIXED"),)
    identity = replace(flow(wanted), policy=PolicySettings("identity"))
    assert remote_patterns(identity) == (Pattern("a"), Pattern("b", "PREFIXED"))
    everything = replace(flow((".*",)), policy=PolicySettings("identity"))
    assert remote_patterns(everything) == (EVERY,)


def test_mirrored_heartbeats_count():
    with_heartbeats = flow(heartbeats_replication_enabled=True)
    assert source_patterns(with_heartbeats) == (Pattern("heartbeats"), Pattern("t"))
    assert remote_patterns(with_heartbeats) == (Pattern("A.heartbeats"), Pattern("A.t"))


names = st.sampled_from(["a", "ab", "abc", "b", "*"])
patterns = st.builds(Pattern, names, st.sampled_from(["LITERAL", "PREFIXED"])).filter(
    lambda pattern: pattern != Pattern("*", "PREFIXED")
)


@given(patterns, patterns, st.sampled_from(["a", "ab", "abc", "abcd", "b", "x"]))
def test_covering_and_meeting_are_about_names(one, other, name):
    def has(pattern: Pattern) -> bool:
        whole = pattern == EVERY or name == pattern.name
        return whole or (pattern.kind == "PREFIXED" and name.startswith(pattern.name))

    if one.covers(other):
        assert has(one) or not has(other)
    if has(one) and has(other):
        assert one.meets(other)
        assert other.meets(one)


# --- needs ----------------------------------------------------------------------------------

MM2 = {
    ("A", "TOPIC", "t", "READ"),
    ("A", "TOPIC", "t", "DESCRIBE_CONFIGS"),
    *(("B", "TOPIC", "A.t", each) for each in ("READ", "WRITE", "CREATE", "ALTER")),
    *(("B", "TOPIC", "mm2-sparkmirror-gaps.A.internal", each)
      for each in ("READ", "WRITE", "CREATE")),
    *(("B", "TOPIC", "mm2-sparkmirror.A.internal", each)
      for each in ("READ", "WRITE", "CREATE", "DESCRIBE_CONFIGS")),
    *(("B", "TOPIC", "mm2-sparkmirror-orders.A.internal", each) for each in ("READ", "CREATE")),
    *(("B", "TOPIC", "mm2-offsets.A.internal", each) for each in ("READ", "WRITE", "CREATE")),
    ("B", "GROUP", "__mirror.A->B", "READ"),
    ("B", "GROUP", "A-mm2", "DESCRIBE"),
}  # fmt: skip
CONFIGS = {("B", "TOPIC", "A.t", "ALTER_CONFIGS")}
ACLS = {("A", "CLUSTER", "kafka-cluster", "DESCRIBE"), ("B", "CLUSTER", "kafka-cluster", "ALTER")}


def test_what_a_mirrormaker_2_flow_needs():
    off = {"sync_configs_enabled": False, "sync_acls_enabled": False}
    assert lines(flow(**off)) == MM2
    assert lines(flow(**{**off, "sync_configs_enabled": True})) == MM2 | CONFIGS
    assert lines(flow(**{**off, "sync_acls_enabled": True})) == MM2 | ACLS
    assert lines(flow()) == MM2 | CONFIGS | ACLS


def test_exactly_once_needs_the_flows_transactional_ids():
    exact = replace(flow(), exactly_once=True)
    (more,) = lines(exact) - lines(flow())
    assert more == ("B", "TRANSACTIONAL_ID", "__mirror.A->B-", "WRITE")
    settings = MirrorSettings((exact,), ())
    needed = [one.binding for one in needed_permissions(settings, me)]
    ids = [binding for binding in needed if binding.resource_type == "TRANSACTIONAL_ID"]
    (command,) = kafka_acls_commands(ids, exact.target, "client.properties")
    assert "--operation Write --transactional-id '__mirror.A->B-'" in command
    assert "--resource-pattern-type prefixed" in command


def test_offset_syncs_in_a_transaction_are_written_by_the_records_writer():
    own = ClusterClient("B", ("b:1",), "syncs")
    syncs = OffsetSyncSettings(enabled=True, location="target", client=own)
    for exact in (False, True):
        settings = MirrorSettings((replace(flow(), exactly_once=exact, offset_syncs=syncs),), ())
        (writer,) = (
            one.client
            for one in needed_permissions(settings, me)
            if one.binding.name == "mm2-offset-syncs.A.internal"
            and one.binding.operation == "WRITE"
        )
        assert writer is (B if exact else own)


def test_what_offset_syncs_and_checkpoints_add():
    quiet = flow(sync_configs_enabled=False, sync_acls_enabled=False)
    runs, syncs = "mm2-sparkmirror-runs.A.internal", "mm2-offset-syncs.B.internal"
    with_syncs = replace(quiet, offset_syncs=OffsetSyncSettings(enabled=True))
    of_syncs = {
        *(("A", "TOPIC", syncs, each) for each in ("CREATE", "WRITE")),
        *(("B", "TOPIC", runs, each) for each in ("CREATE", "WRITE")),
    }
    assert lines(with_syncs) == MM2 | of_syncs
    settings = CheckpointSettings(enabled=True, include=("app.*", "x"))
    of_groups = {
        *(("A", "GROUP", name, "DESCRIBE") for name in ("app", "x")),
        ("A", "TOPIC", syncs, "READ"),
        ("B", "TOPIC", runs, "READ"),
        *(("B", "TOPIC", "A.checkpoints.internal", each) for each in ("CREATE", "READ", "WRITE")),
    }
    with_groups = replace(with_syncs, checkpoints=settings)
    assert lines(with_groups) == MM2 | of_syncs | of_groups
    of_offsets = {("B", "GROUP", name, "READ") for name in ("app", "x")}
    with_offsets = replace(with_groups, checkpoints=replace(settings, sync_enabled=True))
    assert lines(with_offsets) == MM2 | of_syncs | of_groups | of_offsets
    on_target = replace(with_groups, offset_syncs=OffsetSyncSettings(True, "target"))
    assert ("B", "TOPIC", "mm2-offset-syncs.A.internal", "READ") in lines(on_target)
    assert not any(name == syncs for _, _, name, _ in lines(on_target))


def test_heartbeats_need_no_flow():
    beats = HeartbeatSettings("B", A, A)
    found = needed_permissions(MirrorSettings((), (), heartbeats=(beats,)), me)
    assert [(one.client.alias, one.binding.name, one.binding.operation) for one in found] == [
        ("A", "heartbeats", "CREATE"),
        ("A", "heartbeats", "WRITE"),
    ]


def test_what_a_mirrormaker_1_flow_needs():
    settings = replace(
        flow(("t|u.*",)), mode=MirrorMode.MM1, group_id="g", policy=PolicySettings("identity")
    )
    found = lines(settings)
    control = {one for one in found if one[2].startswith("mm2-sparkmirror.")}
    gaps = {one for one in found if one[2].startswith("mm2-sparkmirror-gaps.")}
    orders = {one for one in found if one[2].startswith("mm2-sparkmirror-orders.")}
    assert {one[3] for one in orders} == {"READ", "CREATE"}
    assert {one[3] for one in gaps} == {"READ", "WRITE", "CREATE"}
    assert {one[3] for one in control} == {"READ", "WRITE", "CREATE", "DESCRIBE_CONFIGS"}
    assert found - control - orders - gaps == {
        ("A", "GROUP", "g", "READ"),
        *(("A", "TOPIC", name, each) for name in "tu" for each in ("READ", "DESCRIBE_CONFIGS")),
        *(("B", "TOPIC", name, each) for name in "tu" for each in ("WRITE", "CREATE")),
    }


def test_separate_principals_get_what_each_needs():
    settings = replace(flow(), source_admin=replace(A, client_id="admin"))

    def who(client: ClusterClient) -> str:
        return "User:admin" if client.client_id == "admin" else "User:mirror"

    found = {
        (one.binding.principal, one.binding.operation)
        for one in needed_permissions(MirrorSettings((settings,), ()), who)
        if one.client.alias == "A" and one.binding.resource_type == "TOPIC"
    }
    assert found == {
        ("User:mirror", "READ"),
        ("User:admin", "DESCRIBE"),
        ("User:admin", "DESCRIBE_CONFIGS"),
    }


def test_an_admin_of_its_own_sees_the_internal_topics_that_it_creates():
    """Every start looks whether they are there."""
    settings = replace(flow(), target_admin=replace(B, client_id="admin"))

    def who(client: ClusterClient) -> str:
        return "User:admin" if client.client_id == "admin" else "User:mirror"

    found = {
        (one.binding.name, one.binding.operation)
        for one in needed_permissions(MirrorSettings((settings,), ()), who)
        if one.binding.principal == "User:admin" and one.binding.resource_type == "TOPIC"
    }
    for name in internal_names(settings):
        assert {(name, "CREATE"), (name, "DESCRIBE")} <= found


def test_commands_are_quoted_and_say_why():
    text = "\n".join(needed_text(permissions(flow(("p.*",))), "admin.properties"))
    assert (
        "kafka-acls.sh --bootstrap-server a:1 --add --allow-principal User:a --operation Read "
        "--operation DescribeConfigs --topic p --resource-pattern-type prefixed\n"
    ) in text
    assert "--command-config admin.properties" in text
    assert "--operation Read --group '__mirror.A->B'\n" in text
    assert "--bootstrap-server b:1,b:2 " in text
    assert "# sync.topic.acls.enabled\n" in text
    shown = report(permissions(flow())).lines()
    assert shown[0].split()[:3] == ["CLUSTER", "PRINCIPAL", "RESOURCE"]
    assert len(shown) == 1 + len(lines(flow()))


def test_what_to_grant_names_who_what_and_where():
    assert grant(A, Right("Read", "Topic", "t")) == (
        "Grant User:ANONYMOUS Read on Topic t on cluster A: kafka-acls.sh --bootstrap-server a:1 "
        "--add --allow-principal User:ANONYMOUS --operation Read --topic t"
    )
    id_prefix = Right("Write", "TransactionalId", "__mirror.A->B-", prefixed=True)
    tls = {"ssl.keystore.location": "k"}
    certified = replace(B, security_protocol="SSL", properties=tls)
    assert grant(certified, id_prefix) == (
        "Grant the principal of this client Write on TransactionalId __mirror.A->B- on cluster B: "
        "kafka-acls.sh --bootstrap-server b:1,b:2 --command-config admin.properties --add "
        "--allow-principal User:NAME --operation Write --transactional-id '__mirror.A->B-' "
        "--resource-pattern-type prefixed"
    )
    assert grant(A, Right("Describe", "Topic")) == (
        "Grant User:ANONYMOUS Describe on the topics on cluster A; "
        "sparkmirror acls needed FILE prints the commands."
    )
    note = Right("Describe", "Cluster", note="(or on the groups)")
    assert grant(A, note).endswith("--operation Describe --cluster")


def test_a_denial_from_one_host():
    binding = AclBinding("TOPIC", "t", "LITERAL", "User:x", "10.0.0.1", "ALTER_CONFIGS", "DENY")
    assert kafka_acls_commands([binding], A, "", "--remove") == [
        "kafka-acls.sh --bootstrap-server a:1 --remove --force --deny-principal User:x "
        "--deny-host 10.0.0.1 --operation AlterConfigs --topic t"
    ]


# --- principals -----------------------------------------------------------------------------


def login(mechanism: str, module: str, **options: str) -> ClusterClient:
    told = " ".join(f'{name}="{value}"' for name, value in options.items())
    package = "org.apache.kafka.common.security"
    return replace(
        B,
        properties={
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{package}.{module} required {told};",
        },
    )


def test_principals_that_the_settings_tell():
    plain = login("PLAIN", "plain.PlainLoginModule", username="m", password="p")
    scram = login("SCRAM-SHA-512", "scram.ScramLoginModule", username="s", password="p")
    token = login(
        "SCRAM-SHA-512", "scram.ScramLoginModule", username="s", password="p", tokenauth="true"
    )
    assert [principal_of(each) for each in (plain, scram, token)] == ["User:m", "User:s", None]
    assert principal_of(A) == "User:ANONYMOUS"
    tls = replace(A, security_protocol="SSL")
    assert principal_of(tls) == "User:ANONYMOUS"
    assert principal_of(replace(tls, properties={"ssl.keystore.location": "x"})) is None


# --- lock -----------------------------------------------------------------------------------

REMOTE = (Pattern("A.", "PREFIXED"),)
MINE = (AclBinding("TOPIC", "A.", "PREFIXED", "User:mirror", "*", "WRITE", "ALLOW"),)


def acl(name: str, who: str, what: str, kind: str = "LITERAL", how: str = "ALLOW") -> AclBinding:
    return AclBinding("TOPIC", name, kind, who, "*", what, how)


DENIED = acl("A.", "User:x", "WRITE", "PREFIXED", "DENY")


@pytest.mark.parametrize(
    ("present", "plan"),
    [
        ([], LockPlan(MINE, readable=False)),
        ([acl("A.t", "User:x", "READ")], LockPlan(MINE)),
        (
            [acl("A.t", "User:x", "WRITE")],
            LockPlan((*MINE, acl("A.t", "User:x", "WRITE", how="DENY")), readable=False),
        ),
        ([acl("*", "User:x", "ALL")], LockPlan((*MINE, DENIED))),
        ([acl("A", "User:x", "ALL", "PREFIXED")], LockPlan((*MINE, DENIED))),
        (
            [acl("A.b", "User:x", "ALL", "PREFIXED")],
            LockPlan((*MINE, acl("A.b", "User:x", "WRITE", "PREFIXED", "DENY"))),
        ),
        ([acl("A.t", "User:x", "WRITE"), acl("*", "User:x", "ALL")], LockPlan((*MINE, DENIED))),
        ([acl("A.t", "User:x", "WRITE"), DENIED], LockPlan(MINE, readable=False)),
        ([acl("B.t", "User:x", "WRITE")], LockPlan(MINE, readable=False)),
        ([acl("A.t", "User:mirror", "ALL")], LockPlan(MINE, readable=False)),
        (
            [acl("A.t", "User:*", "ALL")],
            LockPlan((*MINE, acl("A.t", "User:*", "READ")), remove=(acl("A.t", "User:*", "ALL"),)),
        ),
        ([acl("*", "User:*", "ALL")], LockPlan(MINE, blocking=(acl("*", "User:*", "ALL"),))),
    ],
)
def test_what_a_lock_takes(present, plan):
    assert plan_lock(present, REMOTE, MINE) == plan


LOCAL = "A.local"  # a topic of the target's own producers, among the remote ones


@pytest.mark.parametrize(
    ("present", "plan"),
    [
        ([acl(LOCAL, "User:x", "WRITE")], LockPlan(MINE, readable=False)),
        ([acl(LOCAL, "User:*", "ALL")], LockPlan(MINE)),
        (
            [acl(LOCAL, "User:x", "ALL"), acl("A.t", "User:x", "WRITE")],
            LockPlan((*MINE, acl("A.t", "User:x", "WRITE", how="DENY"))),
        ),
        (
            [acl(LOCAL, "User:x", "WRITE"), acl("*", "User:x", "ALL")],
            LockPlan(MINE, blocking=(acl("*", "User:x", "ALL"),)),
        ),
        (
            [acl(LOCAL, "User:*", "WRITE"), acl("A.l", "User:x", "ALL", "PREFIXED")],
            LockPlan(MINE, blocking=(acl("A.l", "User:x", "ALL", "PREFIXED"),)),
        ),
        ([acl(LOCAL, "User:y", "WRITE"), acl("*", "User:x", "ALL")], LockPlan((*MINE, DENIED))),
        ([acl(LOCAL, "User:x", "WRITE"), acl("*", "User:x", "ALL"), DENIED], LockPlan(MINE)),
    ],
)
def test_a_lock_denies_nothing_that_the_flow_does_not_mirror(present, plan):
    assert plan_lock(present, REMOTE, MINE, remote_name=lambda name: name != LOCAL) == plan


def test_readers_are_let_in():
    plan = plan_lock([], REMOTE, MINE, ["User:*"])
    assert plan == LockPlan((*MINE, acl("A.", "User:*", "READ", "PREFIXED")))


bindings = st.builds(
    acl,
    st.sampled_from(["A.t", "A.", "A", "B", "*"]),
    st.sampled_from(["User:mirror", "User:x", "User:*"]),
    st.sampled_from(["READ", "WRITE", "ALL"]),
    st.sampled_from(["LITERAL", "PREFIXED"]),
    st.sampled_from(["ALLOW", "DENY"]),
)


def may_write(acls: set[AclBinding], who: str, topic: str) -> bool:
    """Kafka's rule: a denial beats every permission, and without a permission there is none."""
    fit = [
        one
        for one in acls
        if one.principal in (who, "User:*")
        and one.operation in ("WRITE", "ALL")
        and (one.name in (topic, "*") if one.pattern == "LITERAL" else topic.startswith(one.name))
    ]
    return bool(fit) and all(one.permission == "ALLOW" for one in fit)


@given(st.sets(bindings, max_size=8))
def test_after_a_lock_only_the_mirror_writes_and_nothing_is_left_to_do(present):
    plan = plan_lock(present, REMOTE, MINE)
    after = (present - set(plan.remove)) | set(plan.create)
    again = plan_lock(after, REMOTE, MINE)
    assert (again.create, again.remove) == ((), ())
    if not plan.blocking:
        for who in ("User:x", "User:y"):
            assert not may_write(after, who, "A.t")
            assert not may_write(after, who, "A.other")
        denied = {one for one in present if one.permission == "DENY"}
        if not denied:
            assert may_write(after, "User:mirror", "A.t")
    for name in ("B", "Bx"):  # other topics stay as they were
        for who in ("User:mirror", "User:x", "User:y"):
            assert may_write(after, who, name) == may_write(present, who, name)


@given(st.sets(bindings, max_size=8))
def test_a_lock_takes_no_name_that_the_flow_does_not_mirror(present):
    """Of those that are allowed by their name; ``A.t`` stands for such a topic."""
    plan = plan_lock(present, REMOTE, MINE, remote_name=lambda name: name != "A.t")
    after = (present - set(plan.remove)) | set(plan.create)
    again = plan_lock(after, REMOTE, MINE, remote_name=lambda name: name != "A.t")
    assert (again.create, again.remove) == ((), ())
    named = {one.principal for one in present if (one.name, one.pattern) == ("A.t", "LITERAL")}
    for who in ("User:x", "User:y"):
        if {who, "User:*"} & named and may_write(present, who, "A.t") and not plan.blocking:
            allowed = {one for one in present if one.name == "A.t" and one.pattern == "LITERAL"}
            if may_write(allowed, who, "A.t"):
                assert may_write(after, who, "A.t")
        if not plan.blocking:
            assert not may_write(after, who, "A.other")


@pytest.mark.parametrize(
    ("policy", "topics", "names", "others"),
    [
        (
            "identity",
            TopicSettings(include=("orders.*",), exclude=("orders-local.*",)),
            ["orders", "orders-eu", "A.heartbeats"],
            ["orders-local-eu"],
        ),
        (
            "default",
            TopicSettings(include=("t.*",), exclude=("t-x",)),
            ["A.t", "A.t-y", "A.heartbeats", "A.tt-x", "A.A.t"],
            ["A.t-x"],
        ),
        (
            "default",
            TopicSettings(include=("o-[0-9]",), exclude=(".*[-.]internal", "x.*", ".*-letter")),
            ["A.o-1", "A.other", "A.checkpoints.internal", "A.o-1.dead-letter"],
            ["A.app.internal", "A.xyz", "A.x.dead-letter"],
        ),
        (
            "identity",
            TopicSettings(include=("mm2.*",), exclude=("mm2.*internal", "mm2-storage")),
            ["mm2-offset-syncs.B.internal", "mm2-sparkmirror-runs.A.internal", "mm2-storage"],
            ["mm2-my-internal"],
        ),
        (
            "identity",
            TopicSettings(include=("t",), map=(TopicRule("t", "x"),)),
            ["t", "x", "y"],
            [],
        ),
    ],
)
def test_which_topics_of_the_target_may_be_remote(policy, topics, names, others):
    """All but those that the exclude list names and that are not the mirror's own."""
    flow = replace(
        FLOW,
        policy=PolicySettings(policy),
        topics=topics,
        offset_storage_topic="mm2-storage",
        faults=FaultSettings(bad_record="dead-letter"),
    )
    remote_name = remote_names(flow)
    found = {name: remote_name(name) for name in [*names, *others]}
    assert found == dict.fromkeys(names, True) | dict.fromkeys(others, False)


def test_a_lock_removes_nothing_unless_all_was_added(monkeypatch):
    everybody = acl("A.t", "User:*", "ALL")
    refused = Denied("creating the ACL was refused.")
    calls = []

    def create(_requester, bindings):
        calls.append(("create", tuple(bindings)))
        return [*[None] * (len(bindings) - 1), refused]

    def delete(_requester, bindings):
        calls.append(("delete", tuple(bindings)))
        return [None] * len(bindings)

    monkeypatch.setattr("sparkmirror.wire.admin.cluster.create_acls", create)
    monkeypatch.setattr("sparkmirror.wire.admin.cluster.delete_acls", delete)
    plan = LockPlan(MINE, remove=(everybody,))
    cluster = Cluster(B)
    with pytest.raises(Denied) as caught:
        _apply(plan, cluster)
    assert caught.value is refused
    assert calls == [("create", MINE)]
    refused = None
    _apply(plan, cluster)
    assert calls[1:] == [("create", MINE), ("delete", (everybody,))]


def test_lock_in_words():
    plan = plan_lock([acl("A.t", "User:x", "WRITE", "PREFIXED")], REMOTE, MINE)
    text = list(lock_text(plan, FLOW, "c"))
    assert text[0] == "# permissions of the mirror and of readers"
    assert text[2:4] == [
        "# nobody else may write",
        "# (on prefixes: this also hits topics that topics.exclude leaves out)",
    ]
    assert (
        "--deny-principal User:x --operation Write --topic A.t --resource-pattern-type prefixed"
        in (text[4])
    )
    everybody = plan_lock([acl("A.t", "User:*", "WRITE", "PREFIXED")], REMOTE, MINE)
    assert "topics.exclude" in list(lock_text(everybody, FLOW, "c"))[3]
    nothing = replace(FLOW, topics=TopicSettings(exclude=()))
    named = plan_lock([acl("A.t", "User:x", "WRITE")], REMOTE, MINE)
    for one in (lock_text(plan, nothing, "c"), lock_text(named, FLOW, "c")):
        assert "topics.exclude" not in "".join(one)
    assert text[-1].startswith("# Then only the mirror and super users may read")
    blocked = plan_lock([acl("*", "User:*", "ALL")], REMOTE, MINE)
    told = list(lock_text(blocked, FLOW, "c"))
    assert len(told) == 3
    assert "--remove --force --allow-principal 'User:*' --operation All --topic '*'" in told[2]
    held = [acl(LOCAL, "User:x", "WRITE"), acl("*", "User:x", "ALL")]
    blocked = plan_lock(held, REMOTE, MINE, remote_name=lambda name: name != LOCAL)
    told = list(lock_text(blocked, FLOW, "c"))
    assert "a denial would also hit topics # that A->B does not mirror" in " ".join(told[:3])
    assert "--remove --force --allow-principal User:x --operation All --topic '*'" in told[-1]
    done = plan_lock([*MINE, acl("A.t", "User:r", "READ")], REMOTE, MINE)
    assert list(lock_text(done, FLOW, "c")) == [
        "# nothing to do: only the mirror writes to the remote topics of A->B"
    ]


# --- maps of topic names ----------------------------------------------------------------------


def test_remote_topics_of_a_map_are_as_narrow_as_acls_can_say_it() -> None:
    rules = (
        TopicRule("^eu[.](.*)$", "tenant-eu.$1"),
        TopicRule("payments", "money"),
        TopicRule("x(.*)", "tenant-eu.x.$1"),
    )
    assert set(remote_patterns(flow((".*",), map=rules))) == {
        Pattern("A.", "PREFIXED"),
        Pattern("tenant-eu.", "PREFIXED"),
        Pattern("money"),
    }
    # A topic by name has the one name that it gets.
    named = remote_patterns(flow(("payments", "orders", "eu[.]t"), map=rules[1:]))
    assert Pattern("money") in named
    assert remote_patterns(flow(("payments", "orders"), map=rules)) == (
        Pattern("A.orders"),
        Pattern("money"),
    )
    anything = (TopicRule("eu[.](.*)", "$1"),)
    assert remote_patterns(flow((".*",), map=anything)) == (EVERY,)


def test_remote_topics_of_regex_router() -> None:
    router = SmtSettings("r", "RegexRouter", "A[.](.*)", "moved.$1")
    assert set(remote_patterns(flow(("a", "b.*"), smts=(router,)))) == {
        Pattern("A.b", "PREFIXED"),
        Pattern("moved.", "PREFIXED"),
    }
    topic = "mm2-sparkmirror-topics.internal"
    assert any(one[2] == topic for one in lines(flow(smts=(router,))))
    second = replace(router, regex="moved.*", replacement="x")
    assert remote_patterns(flow((".*",), smts=(router, second))) == (EVERY,)


def test_the_topic_of_names_is_written_and_read_where_there_is_a_map() -> None:
    topic = "mm2-sparkmirror-topics.internal"
    mapped = lines(flow(map=(TopicRule("t", "x"),)))
    assert {one for one in mapped if one[2] == topic} == {
        ("B", "TOPIC", topic, each) for each in ("CREATE", "READ", "WRITE")
    }
    assert not any(one[2] == topic for one in lines(flow()))


@pytest.mark.parametrize(
    ("select", "most", "wanted"),
    [
        ("'all' AS topic", 9, {"WRITE", "CREATE"}),
        ("'all' AS topic", 0, {"WRITE"}),
        ("value AS topic", 9, set()),
    ],
)
def test_a_topic_that_sql_names_for_all_records(select: str, most: int, wanted: set[str]) -> None:
    """Which others records will name is unknown."""
    one = TransformSettings("route", ("t",), "", select, routes=True)
    found = lines(replace(flow(), transforms=(one,), routed_topics_max=most))
    assert {operation for _, _, name, operation in found if name == "all"} - {"DESCRIBE"} == wanted


@pytest.mark.parametrize(
    ("topic_format", "pattern"),
    [
        ("${topic}-${timestamp}", Pattern("A.t", "PREFIXED")),
        ("all.${timestamp}", Pattern("all.", "PREFIXED")),
        ("${timestamp}", EVERY),
    ],
)
def test_topics_that_timestamp_router_names(topic_format: str, pattern: Pattern) -> None:
    smt = SmtSettings("s", "TimestampRouter", topic_format=topic_format, time_format="yyyy")
    found = {
        (one.binding.name, one.binding.pattern)
        for one in permissions(replace(flow(smts=(smt,)), routed_topics_max=9))
        if one.binding.operation == "WRITE" and one.why == "write records that are routed there"
    }
    assert found == {(pattern.name, pattern.kind)}
