r"""``sparkmirror.topics.map`` in both kinds of files: what is taken, refused, and remarked on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.errors import ConfigError
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import MirrorSettings, TopicRule
from tests.unit.config_files import BASE, LINE, load, load_flow, refused, write

KEY = "A->B.sparkmirror.topics.map"
BOTH = BASE + "B->A.enabled=true\n"
FAN_IN = "clusters=A,B,C\nbootstrap.servers=x:1\nA->C.enabled=true\nB->C.enabled=true\n"


def test_a_backslash_is_doubled_and_rules_go_over_lines(tmp_path: Path) -> None:
    text = f"{KEY} = ^eu\\\\.(.*)$ => tenant-eu.$1; \\\n  us[.](.*) => tenant-us.$1\n"
    flow = load_flow(tmp_path, text)
    assert flow.topics.map == (
        TopicRule(r"^eu\.(.*)$", "tenant-eu.$1"),
        TopicRule("us[.](.*)", "tenant-us.$1"),
    )
    names = FlowTopics(flow)
    assert names.remote("eu.t") == "tenant-eu.t"
    assert names.remote("t") == "A.t"


def test_without_a_map_nothing_is_kept(tmp_path: Path) -> None:
    for extra in ("", f"{KEY}=\n"):
        flow = load_flow(tmp_path, extra)
        assert flow.topics.map == ()
        assert not flow.keeps_names


def test_a_map_for_all_flows_and_one_of_a_flow(tmp_path: Path) -> None:
    text = FAN_IN + "topics=t\nsparkmirror.topics.map=t => all.t\n"
    text += "B->C.sparkmirror.topics.map=t => other.t\n"
    first, second = load(tmp_path, text).flows
    assert FlowTopics(first).remote("t") == "all.t"
    assert FlowTopics(second).remote("t") == "other.t"


def test_workers_get_the_rules(tmp_path: Path) -> None:
    text = FAN_IN + "A->C.sparkmirror.topics.map=t => x; (.*) => y.$1\n"
    for flow in load(tmp_path, text).flows:
        assert decode_flow(encode_flow(flow)) == flow


def test_flows_of_a_target_with_a_map_know_each_other(tmp_path: Path) -> None:
    text = FAN_IN + "C->A.enabled=true\nC->A.topics=q\nA->C.sparkmirror.topics.map=t => x\n"
    flows = {flow.name: flow for flow in load(tmp_path, text).flows}
    assert flows["B->C"].beside == (flows["A->C"].naming,)
    assert flows["A->C"].beside == (flows["B->C"].naming,)
    assert flows["C->A"].beside == ()
    assert flows["B->C"].keeps_names
    assert not flows["C->A"].keeps_names
    assert all(flow.beside == () for flow in load(tmp_path, FAN_IN).flows)


@pytest.mark.parametrize(
    ("value", "told", "do"),
    [
        ("eu.*", "the rule 'eu.*' has no '=>'", "Write REGEX => NAME"),
        ("eu( => x", "'eu(' is an invalid regex", "Java regular expressions"),
        ("(eu) => $3", "the regex has no group $3; it has 1", "$1 stands for the first group"),
        ("eu =>", "gives no name", "To leave topics out, change"),
        ("eu => a b", "it contains ' '", "Write the name of the topic"),
        ("eu => " + "x" * 250, "it has 250 characters", "Write the name"),
        ("eu => __x", "gives only names of internal topics", "not begin with '__'"),
        ("(.*) => .$1", "gives only names of internal topics", "not begin with '__'"),
        ("eu => heartbeats", "gives only names of internal topics", "heartbeats"),
        ("eu => mm2-sparkmirror-topics.internal", "only names of internal topics", "mm2"),
        ("a => b => c", "more than one '=>'", "';' between two rules"),
    ],
)
def test_wrong_rules_are_refused_with_file_line_and_key(
    tmp_path: Path, value: str, told: str, do: str
) -> None:
    error = refused(tmp_path, f"{BASE}{KEY}={value}\n")
    assert told in error.what
    assert do in error.do
    assert f"mm2.properties:{LINE}" in str(error)
    assert KEY in str(error)


def test_a_key_that_is_a_slip_is_corrected(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{BASE}A->B.sparkmirror.topic.map=a => b\n")
    assert f"did you mean {KEY}?" in error.what


def test_a_map_from_a_provider_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = "config.providers=env\nconfig.providers.env.class="
    provider += "org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
    monkeypatch.setenv("RULES", "secret.* => hidden name")
    error = refused(tmp_path, f"{BASE}{provider}{KEY}=${{env:RULES}}\n")
    assert "The value is an invalid map of topic names" in error.what
    assert "hidden" not in str(error)
    monkeypatch.setenv("RULES", "a.* => b; ab => hidden")
    (remark, *_) = [
        line for line in load(tmp_path, f"{BASE}{provider}{KEY}=${{env:RULES}}\n").warnings
        if "matches no topic" in line
    ]  # fmt: skip
    assert "ab" not in remark.replace(str(tmp_path), "")


# --- loops --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["DefaultReplicationPolicy", "IdentityReplicationPolicy"])
def test_a_loop_is_refused_with_an_example(tmp_path: Path, policy: str) -> None:
    text = f"{BOTH}replication.policy.class={policy}\n{KEY}=^eu[.](.*)$ => tenant-eu.$1\n"
    text += "A->B.topics=eu[.]orders\nB->A.topics=tenant-eu.*\n"
    error = refused(tmp_path, text)
    back = "B.tenant-eu.orders" if policy.startswith("Default") else "tenant-eu.orders"
    assert "the flows A->B->A form a loop" in error.what
    assert f"for example, 'eu.orders' of A becomes 'tenant-eu.orders' on B, then '{back}' on A" in (
        error.what
    )
    assert "B->A.topics.exclude" in error.do
    assert f"mm2.properties:{LINE + 2}: {KEY}" in error.where


def test_the_same_map_both_ways_is_a_loop(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{BOTH}sparkmirror.topics.map=(.*) => x.$1\n")
    assert "for example, 'a' of A becomes 'x.a' on B, then 'x.x.a' on A" in error.what


def test_both_ways_without_a_loop(tmp_path: Path) -> None:
    text = f"{BOTH}{KEY}=^eu[.](.*)$ => tenant-eu.$1\nB->A.topics.exclude=tenant-.*\n"
    assert load(tmp_path, text).warnings == ()


def test_a_ring_that_is_too_complex_is_told(tmp_path: Path) -> None:
    text = f"{BOTH}{KEY}=(?!x)(e.*) => y$1\nB->A.topics=y.*\n"
    (remark,) = load(tmp_path, text).warnings
    assert "form a loop" in remark
    assert "too complex to decide" in remark
    assert KEY in remark


# --- remarks ------------------------------------------------------------------------------------


def test_rules_that_catch_nothing_are_told(tmp_path: Path) -> None:
    text = f"{BASE}A->B.topics=eu.*\n{KEY}=us.* => x; eu.* => all.$0; eu1 => y\n"
    first, second = load(tmp_path, text).warnings
    assert f"mm2.properties:{LINE + 1}: {KEY}: the rule 'us.* => x' matches no topic" in first
    assert "the rule 'eu1 => y' matches no topic that A->B mirrors" in second


def test_topics_of_one_flow_that_may_get_one_name_are_told(tmp_path: Path) -> None:
    (remark,) = load(tmp_path, f"{BASE}{KEY}=(eu|us)[.](.+) => all.$2\n").warnings
    assert "for example, 'eu.a' and 'us.a' would both be 'all.a'" in remark
    assert f"mm2.properties:{LINE}: {KEY}" in remark


def test_flows_that_may_merge_are_told(tmp_path: Path) -> None:
    text = FAN_IN + "A->C.sparkmirror.topics.map=eu[.](.+) => $1\nB->C.topics=o.*\n"
    (remark,) = [line for line in load(tmp_path, text).warnings if "different clusters" in line]
    assert "eu.B.o of A and o of B as B.o" in remark
    assert "a run does not start if two such topics exist" in remark


# --- MirrorMaker 1 ------------------------------------------------------------------------------

CONSUMER = "bootstrap.servers=a:1\ngroup.id=mirror\n"
PRODUCER = "bootstrap.servers=b:1\n"


def mm1(directory: Path, *consumers: str, **options: Any) -> MirrorSettings:
    files = [
        write(directory, text, f"consumer-{number}.properties")
        for number, text in enumerate(consumers)
    ]
    producer = write(directory, PRODUCER, "producer.properties")
    return load_mm1(files, producer, **({"include": ".*"} | options))


def test_mirrormaker_1_has_the_map_in_its_consumer_file(tmp_path: Path) -> None:
    text = CONSUMER + "sparkmirror.topics.map=^eu\\\\.(.*)$ => tenant-eu.$1\n"
    settings = mm1(tmp_path, text)
    (flow,) = settings.flows
    assert FlowTopics(flow).remote("eu.t") == "tenant-eu.t"
    assert FlowTopics(flow).remote("t") == "t"
    assert flow.keeps_names
    (remark,) = [
        line for line in settings.warnings if "the same name" in line
    ]  # eu.x and tenant-eu.x
    assert "consumer-0.properties:3: sparkmirror.topics.map" in remark
    assert mm1(tmp_path, CONSUMER).warnings == ()


def test_mirrormaker_1_refuses_wrong_rules(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"consumer-0[.]properties:3: sparkmirror[.]topics[.]map: the"
    ):
        mm1(tmp_path, CONSUMER + "sparkmirror.topics.map=a > b\n")
    with pytest.raises(ConfigError, match="gives only names of internal topics"):
        mm1(tmp_path, CONSUMER + "sparkmirror.topics.map=a => __b\n")


def test_two_consumer_files_that_may_merge_are_told_only_with_a_map(tmp_path: Path) -> None:
    other = CONSUMER.replace("a:1", "c:1")
    assert mm1(tmp_path, CONSUMER, other).warnings == ()
    settings = mm1(tmp_path, CONSUMER + "sparkmirror.topics.map=t => u\n", other)
    assert any("become one topic on target" in line for line in settings.warnings)
    first, second = settings.flows
    assert second.beside == (first.naming,)
    assert first.mirror != second.mirror
