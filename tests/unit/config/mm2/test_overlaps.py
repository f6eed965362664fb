"""Flows whose topics meet under one name: rings are refused, mixed topics are told."""

from pathlib import Path

import pytest

from tests.unit.config_files import BASE, load, refused

_BOTH = BASE + "B->A.enabled=true\nreplication.policy.class=IdentityReplicationPolicy\n"
_BACK = "B->A.replication.policy.class=DefaultReplicationPolicy\n"
_THREE = (
    "clusters=A,B,C\nbootstrap.servers=x:1\nreplication.policy.class=IdentityReplicationPolicy\n"
)


@pytest.mark.parametrize(
    ("extra", "topic"),
    [
        ("", "a"),
        ("A->B.topics=x,z\nB->A.topics=y,z\n", "z"),
        ("A->B.topics=x.*\nB->A.topics=.*y\n", "xy"),
        ("A->B.topics=x.*\nB->A.topics=.*\nB->A.topics.exclude=x\n", "xa"),
    ],
)
def test_a_ring_of_unrenamed_topics_is_refused(tmp_path: Path, extra: str, topic: str) -> None:
    error = refused(tmp_path, _BOTH + extra)
    assert "the flows A->B->A form a loop" in error.what
    assert f"each record of topic {topic}, for example," in error.what
    assert "Give A->B.topics, B->A.topics lists" in error.do


@pytest.mark.parametrize(
    "extra",
    [
        "A->B.topics=x\nB->A.topics=y\n",
        "A->B.topics=orders.*\nB->A.topics=payments.*\n",
        "A->B.topics=.*\nA->B.topics.exclude=.*[.]b\nB->A.topics=.*[.]b\n",
        "A->B.topics=\n",
        # Each topic ends after a round: a list leaves out the name with which it comes back.
        _BACK + "A->B.topics=orders\n",
        _BACK + "A->B.topics.exclude=B[.].*\n",
        _BACK + "B->A.topics=payments\nA->B.topics=orders.*\n",
        # Or after two, of which the lists say so.
        _BACK + "A->B.topics=t,B[.]t\n",
        # Never mirrored, or renamed under every policy.
        "A->B.topics=__.*,mm2-x[.]internal,heartbeats\n",
        "A->B.topics=(?!x).*\nB->A.topics=x\n",
    ],
)
def test_lists_that_have_nothing_in_common_are_no_ring(tmp_path: Path, extra: str) -> None:
    told = load(tmp_path, _BOTH + extra).warnings
    assert [line for line in told if "is empty, so no topic" not in line] == []


@pytest.mark.parametrize(
    ("extra", "way"),
    [
        (_BACK, "'a' of A becomes 'a' on B, then 'B.a' on A, then 'B.a' on B, then 'B.B.a' on A"),
        (
            "A->B.replication.policy.class=DefaultReplicationPolicy\nB->A.topics=.*orders\n",
            "'orders' of A becomes 'A.orders' on B, then 'A.orders' on A, then 'A.A.orders' on B",
        ),
        # Each flow looks for its own separator.
        (
            _BACK + "A->B.replication.policy.class=DefaultReplicationPolicy\n"
            "A->B.replication.policy.separator=-\n",
            "'a' of A becomes 'A-a' on B, then 'B.A-a' on A, then 'A-B.A-a' on B",
        ),
    ],
)
def test_policies_that_do_not_know_each_others_names_are_no_way_round(
    tmp_path: Path, extra: str, way: str
) -> None:
    error = refused(tmp_path, _BOTH + extra)
    assert "the flows A->B->A form a loop" in error.what
    assert way in error.what
    assert ".topics.exclude" in error.do


def test_lists_beyond_comparison_are_told_with_several_policies_too(tmp_path: Path) -> None:
    (remark,) = load(tmp_path, _BOTH + _BACK + "A->B.topics=(?!x).*\n").warnings
    assert "A->B->A form a loop" in remark
    assert "Leave what B->A creates out of A->B (A->B.topics.exclude)" in remark


def test_lists_beyond_comparison_are_told(tmp_path: Path) -> None:
    (remark,) = load(tmp_path, _BOTH + "A->B.topics=(?!x).*\nB->A.topics=y.*\n").warnings
    assert "A->B->A form a loop" in remark
    assert "make sure that A->B.topics, B->A.topics do not overlap" in remark


def test_a_longer_ring(tmp_path: Path) -> None:
    text = _THREE + "A->B.enabled=true\nB->C.enabled=true\nC->A.enabled=true\n"
    assert "A->B->C->A form a loop" in refused(tmp_path, text).what
    # Each two of the lists have something in common, all three have not.
    lists = "A->B.topics=x,y\nB->C.topics=y,z\nC->A.topics=z,x\n"
    assert load(tmp_path, text + lists).warnings == ()


def test_a_longer_ring_with_several_policies(tmp_path: Path) -> None:
    text = _THREE + "A->B.enabled=true\nB->C.enabled=true\nC->A.enabled=true\n"
    default = "->{}.replication.policy.class=DefaultReplicationPolicy\n"
    error = refused(tmp_path, text + "C" + default.format("A"))
    assert "'C.a' on A" in error.what
    # Two of them that follow one another know each other's names.
    more = "C" + default.format("A") + "B" + default.format("C")
    assert load(tmp_path, text + more).warnings == ()


def test_a_longer_ring_with_several_separators(tmp_path: Path) -> None:
    text = "clusters=A,B,C\nbootstrap.servers=x:1\nA->B.enabled=true\nB->C.enabled=true\n"
    text += "C->A.enabled=true\n"
    assert load(tmp_path, text).warnings == ()
    # Two that follow one another have the same, and the third one hides what they wrote.
    error = refused(tmp_path, text + "C->A.replication.policy.separator=-\n")
    assert "'C-B.A.a' on A" in error.what


def test_a_ring_that_another_node_closes_is_seen(tmp_path: Path) -> None:
    assert "form a loop" in refused(tmp_path, _BOTH, clusters=["B"]).what


def test_topics_of_two_clusters_that_become_one_are_told(tmp_path: Path) -> None:
    text = _THREE + "A->C.enabled=true\nB->C.enabled=true\n"
    (remark,) = load(tmp_path, text + "A->C.topics=x.*\nB->C.topics=.*y\n").warnings
    assert "become one topic on C" in remark
    assert "xy of A and xy of B as xy" in remark
    assert load(tmp_path, text + "A->C.topics=x.*\nB->C.topics=y.*\n").warnings == ()


def test_names_that_meet_although_they_are_prefixed(tmp_path: Path) -> None:
    text = "clusters=A,A.B,C\nbootstrap.servers=x:1\nA->C.enabled=true\nA.B->C.enabled=true\n"
    meeting, alias = load(tmp_path, text + "topics=t,B[.]t\n").warnings
    assert "B.t of A and t of A.B as A.B.t" in meeting
    assert "the alias 'A.B' contains the separator '.'" in alias
    assert "take topics of 'A.B' for topics of 'A'" in alias
    other = text + "replication.policy.separator=-\ntopics=t,B[.]t\n"
    assert load(tmp_path, other).warnings == ()


def test_the_usual_file_has_no_such_remark(tmp_path: Path) -> None:
    assert load(tmp_path, BASE + "B->A.enabled=true\n").warnings == ()
    fan_in = "clusters=A,B,C\nbootstrap.servers=x:1\nA->C.enabled=true\nB->C.enabled=true\n"
    assert load(tmp_path, fan_in).warnings == ()
