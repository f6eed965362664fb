"""Topics that records may be routed to: what is refused, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.names.routed_names import RoutedNames
from sparkmirror.settings import FlowSettings

IDENTITY = "replication.policy.class = IdentityReplicationPolicy"
ROUTE = (
    "A->B.sparkmirror.transforms = route",
    "A->B.sparkmirror.transform.route.topics = orders",
    "A->B.sparkmirror.transform.route.select = 'x' AS topic",
)


def _flow(path: Path, *lines: str) -> FlowSettings:
    head = ["clusters = A, B, C", "A->B.enabled = true"]
    head += [f"{alias}.bootstrap.servers = {alias.lower()}:1" for alias in "ABC"]
    file = path / "mm2.properties"
    file.write_text("\n".join([*head, *ROUTE, *lines]) + "\n")
    flow = next(one for one in load_mm2(file).flows if one.name == "A->B")
    return decode_flow(encode_flow(flow))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "it is empty"),
        ("a b", "topic names have only letters"),
        ("x" * 250, "it has 250 characters"),
        ("..", "Kafka does not allow"),
        ("__consumer_offsets", "an internal topic"),
        ("mm2-offsets.A.internal", "an internal topic"),
        ("A.checkpoints.internal", "an internal topic"),
        ("heartbeats", "a heartbeats topic"),
        ("A.heartbeats", "a heartbeats topic"),
        ("A.carts", "also mirrors source topic 'carts' under this name"),
    ],
)
def test_refused_names(name: str, why: str, tmp_path: Path) -> None:
    assert why in RoutedNames(_flow(tmp_path, "topics = .*")).fault(name)


@pytest.mark.parametrize("name", ["clean.orders", "orders", "A.orders", "B.x", "carts"])
def test_names_as_they_are_written(name: str, tmp_path: Path) -> None:
    """They are whole names on the target. Topics that the same transform routes may share them."""
    assert RoutedNames(_flow(tmp_path, "topics = .*")).fault(name) == ""


def test_policies_that_keep_names_need_lists_that_leave_the_new_ones_out(tmp_path: Path) -> None:
    narrow = _flow(tmp_path, IDENTITY, "topics = orders, carts")
    assert RoutedNames(narrow).fault("clean.orders") == ""
    wide = _flow(tmp_path, IDENTITY, "topics = .*")
    assert "also mirrors source topic 'clean.orders'" in RoutedNames(wide).fault("clean.orders")
    left_out = _flow(tmp_path, IDENTITY, "topics = .*", "topics.exclude = clean[.].*")
    assert RoutedNames(left_out).fault("clean.orders") == ""


def test_names_that_a_map_gives(tmp_path: Path) -> None:
    flow = _flow(tmp_path, "topics = .*", "A->B.sparkmirror.topics.map = ^eu[.](.*)$ => t.$1")
    names = RoutedNames(flow)
    assert "'eu.carts'" in names.fault("t.carts")
    assert names.fault("t") == ""


def test_a_name_that_another_flow_brings_back(tmp_path: Path) -> None:
    back = ("B->A.enabled = true", "B->A.topics = clean", "A->B.topics = orders")
    mapped = "B->A.sparkmirror.topics.map = clean => orders"
    flow = _flow(tmp_path, *back, mapped)
    assert [[lane.name for lane in way] for way in flow.returns] == [["B->A"]]
    assert "B->A would mirror it back to A as 'orders'" in RoutedNames(flow).fault("clean")
    assert RoutedNames(flow).fault("clean2") == ""
    # B.clean is no topic that A->B mirrors: it comes back once, and no further.
    assert RoutedNames(_flow(tmp_path, *back)).fault("clean") == ""


def test_a_name_that_comes_back_over_a_third_cluster(tmp_path: Path) -> None:
    ring = ("B->C.enabled = true", "C->A.enabled = true", "topics = clean|orders", IDENTITY)
    told = ("A->B.topics = orders", "C->A.sparkmirror.topics.map = clean => orders")
    flow = _flow(tmp_path, *ring, "B->C.topics = clean", "C->A.topics = clean", *told)
    assert [[lane.name for lane in way] for way in flow.returns] == [["B->C", "C->A"]]
    assert "B->C, C->A would mirror it back to A as 'orders'" in RoutedNames(flow).fault("clean")


def test_flows_whose_transforms_do_not_route_know_no_ways_back(tmp_path: Path) -> None:
    flow = _flow(tmp_path, "B->A.enabled = true")
    assert flow.returns
    other = tmp_path / "other"
    other.mkdir()
    kept = _flow(other, "B->A.enabled = true", "A->B.sparkmirror.transform.route.select = topic")
    assert not kept.returns
    assert not replace(kept, returns=()).transforms[0].routes


def test_names_that_timestamp_router_gives(tmp_path: Path) -> None:
    """Without a predicate on names, no topic keeps one that they may meet."""
    text = (tmp_path / "mm2.properties").write_text
    head = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n"
    head += "A->B.enabled = true\nA->B.topics = .*\n"
    head += "A->B.transforms = day\nA->B.transforms.day.type = TimestampRouter\n"
    named = "A->B.transforms.day.predicate = p\nA->B.predicates = p\n"
    named += "A->B.predicates.p.type = TopicNameMatches\nA->B.predicates.p.pattern = A[.]orders\n"
    exclude = "A->B.topics.exclude = .*-[0-9]{8}\n"
    found = []
    for more in ("", named, named + exclude):
        text(head + more)
        (flow,) = load_mm2(tmp_path / "mm2.properties").flows
        names = RoutedNames(flow)
        assert "a heartbeats topic" in names.fault("A.heartbeats")
        found.append(names.fault("A.orders-20261125"))
    assert found[::2] == ["", ""]
    assert "also mirrors source topic 'orders-20261125' under this name; exclude" in found[1]


_SHORT = {"type": "RegexRouter", "regex": "A[.](.*)", "replacement": "$1"}
_DAY = {"type": "TimestampRouter"}
_NAMED = _DAY | {"predicate": "p"}


def _with_smts(path: Path, pattern: str, *smts: dict[str, str]) -> RoutedNames:
    lines = ["clusters = A, B", "A.bootstrap.servers = a:1", "B.bootstrap.servers = b:1"]
    lines += ["A->B.enabled = true", "A->B.topics = .*", "A->B.predicates = p"]
    lines += ["A->B.predicates.p.type = TopicNameMatches", f"A->B.predicates.p.pattern = {pattern}"]
    lines += ["A->B.transforms = " + ", ".join(f"s{number}" for number in range(len(smts)))]
    for number, one in enumerate(smts):
        lines += [f"A->B.transforms.s{number}.{key} = {value}" for key, value in one.items()]
    (path / "mm2.properties").write_text("\n".join(lines) + "\n")
    (flow,) = load_mm2(path / "mm2.properties").flows
    return RoutedNames(flow)


def test_timestamp_router_after_regex_router(tmp_path: Path) -> None:
    """All topics are routed, so no other one has any of the names."""
    names = _with_smts(tmp_path, "x", _SHORT, _DAY)
    assert names.fault("orders-20261125") == ""
    assert names.fault("A.orders-20261125") == ""
    assert "a heartbeats topic" in names.fault("heartbeats")


@pytest.mark.parametrize(
    ("smts", "free", "taken"),
    [
        ((_SHORT,), "orders", ("orders-20261125", "orders-20261125")),
        # The second one gets the names that the first one gives.
        ((_SHORT, _SHORT | {"regex": "(.*)", "replacement": "new.$1"}), "x", ("new.x", "x")),
        ((_SHORT | {"predicate": "p"},), "orders-1", ("A.carts-1", "carts-1")),
        ((_SHORT | {"predicate": "p", "negate": "true"},), "A.orders", ("carts-1", "carts-1")),
        ((_SHORT | {"regex": "(?:A|B)[.](x.*)$"},), "z", ("x", "x")),
    ],
)
def test_timestamp_router_for_some_topics_after_regex_router(
    smts: tuple[dict[str, str], ...], free: str, taken: tuple[str, str], tmp_path: Path
) -> None:
    """What RegexRouter makes of the other topics is known."""
    names = _with_smts(tmp_path, "A[.]orders|orders", *smts, _NAMED)
    assert names.fault(free) == ""
    assert f"also mirrors source topic '{taken[1]}' under this name" in names.fault(taken[0])


def test_topics_that_timestamp_router_routes_keep_no_name(tmp_path: Path) -> None:
    names = _with_smts(tmp_path, "A[.]orders.*", _NAMED)
    assert names.fault("A.orders-20261125") == ""
    assert "'carts'" in names.fault("A.carts")


@pytest.mark.parametrize(
    "regex", ["A|A.*", "A[.](x|xy.*)", "A[.]x?(?:xy)?", "(?=A)A.*", "A.*?", r"A[.]\\Qx.*"]
)
def test_a_regex_router_whose_names_are_not_known(regex: str, tmp_path: Path) -> None:
    """Java finds the first match, which need not be the whole name here."""
    partly = {"type": "RegexRouter", "regex": regex, "replacement": "B"}
    names = _with_smts(tmp_path, "A[.]orders", partly, _NAMED)
    assert "too complex to decide" in names.fault("orders")


def test_a_map_that_uses_a_group_twice(tmp_path: Path) -> None:
    rule = "A->B.sparkmirror.topics.map = x(.*) => $1.$1"
    names = RoutedNames(_flow(tmp_path, "topics = x.*, orders", rule))
    assert names.fault("clean.orders") == ""
    assert "'xa'" in names.fault("a.a")
