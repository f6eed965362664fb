"""Which single message transforms apply to a topic, and the name that RegexRouter gives it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.smts import SmtChain, conditions, variants
from sparkmirror.names.topic_ways import one_target_twice
from sparkmirror.settings import FlowNaming, PolicySettings, TopicRule, TopicSettings
from sparkmirror.transform_settings import SmtSettings

_NAMES = ("A.orders", "A.eu", "orders", "eu", "x")


def _router(
    regex: str, replacement: str, pattern: str = "", *, negate: bool = False
) -> SmtSettings:
    predicate = "TopicNameMatches" if pattern else ""
    return SmtSettings(
        *("r", "RegexRouter", regex, replacement),
        predicate=predicate, argument=pattern, negate=negate,
    )  # fmt: skip


def _topics(*smts: SmtSettings, rules: tuple[TopicRule, ...] = ()) -> FlowTopics:
    return FlowTopics(FlowNaming("A", "B", PolicySettings(), TopicSettings(smts=smts, map=rules)))


def test_java_replaces_the_first_match_of_a_name_that_matches_as_a_whole() -> None:
    for regex, replacement, name in (
        (r"A\.(.*)", "$1", "t"),
        ("A", "x", "A.t"),
        (r"A|A\.t", "x", "x.t"),
        ("A.*?", "x", "x.t"),
        (r"(B)?A\.(t)", "$1-$2", "-t"),
        (r"(?<all>.*)", r"\$${all}", "$A.t"),
    ):
        assert SmtChain([_router(regex, replacement)]).passage("A.t").name == name


def test_conditions_see_the_name_that_those_before_gave() -> None:
    drop = SmtSettings(
        "d", "DropHeaders", headers=("h",), predicate="TopicNameMatches", argument="t"
    )
    chain = SmtChain([drop, _router(r"A\.(.*)", "$1"), drop])
    assert chain.passage("A.t").steps == (2,)
    assert chain.passage("t").steps == (0, 2)
    assert len(conditions([drop, _router("a", "b"), drop])) == 2
    assert variants([drop, _router("a", "b"), drop]) == [(0,), (2,), (0, 2)]


def test_nothing_applies_after_a_filter_of_the_whole_topic() -> None:
    smts = [SmtSettings("f", "Filter"), SmtSettings("d", "DropHeaders", headers=("h",))]
    assert SmtChain(smts).passage("A.t").steps == (0,)
    by_record = SmtSettings("f", "Filter", predicate="RecordIsTombstone")
    assert SmtChain([by_record, smts[1]]).passage("A.t").steps == (0, 1)


def test_heartbeats_keep_the_policy_s_name_and_pass_the_others() -> None:
    rule = TopicRule("heartbeats", "elsewhere")
    drop = SmtSettings(
        "d", "DropHeaders", headers=("h",), predicate="TopicNameMatches", argument="A.heartbeats"
    )
    names = _topics(drop, _router("(.*)", "new-$1"), rules=(rule,))
    assert names.remote("heartbeats") == "A.heartbeats"
    assert names.smts("heartbeats") == (0,)
    assert names.remote("t") == "new-A.t"
    assert names.smts("t") == ()
    assert names.rule("t") is None


def test_a_name_that_stays_is_the_policy_s() -> None:
    """Only other names are kept in the topic of names."""
    names = _topics(_router("A[.]x(.*)", "A.y$1"))
    assert [names.mapped(one) for one in ("t", "x1")] == [None, "A.y1"]
    assert names.fault("x1") == ""
    assert "empty" in _topics(_router("(x)?A.*", "$1")).fault("t")
    assert "internal topic" in _topics(_router(".*", "__t")).fault("t")


def test_an_example_of_two_topics_with_one_name() -> None:
    def met(regex: str, replacement: str) -> tuple[str, str, str] | None:
        topics = TopicSettings(smts=(_router(regex, replacement),))
        return one_target_twice(FlowNaming("A", "B", PolicySettings(), topics))

    found = met(".*", "all")
    assert found is not None
    assert found[2] == "all"
    assert met(r"A\.(.*)", "$1") is None


_predicates = st.sampled_from(
    [
        {},
        {"predicate": "RecordIsTombstone"},
        *({"predicate": "TopicNameMatches", "argument": one} for one in ("A.*", "orders|eu", "x")),
    ]
)
_steps = st.builds(
    lambda kind, predicate, negate: SmtSettings(
        "s", kind, "A[.](.*)", "$1", ("h",), negate=bool(predicate) and negate, **predicate
    ),
    st.sampled_from(["Filter", "DropHeaders", "InsertHeader"]),
    _predicates,
    st.booleans(),
)
_routers = st.builds(
    _router,
    st.sampled_from(["A[.](.*)", "(.*)", "e"]),
    st.sampled_from(["$0", "x"]),
    st.sampled_from(["", "A.*", "x"]),
    negate=st.booleans(),
)


@given(st.lists(st.one_of(_steps, _routers), max_size=6), st.sampled_from(_NAMES))
def test_what_applies_to_a_topic_is_one_of_the_variants(smts: list[SmtSettings], name: str) -> None:
    """So each topic has its column in the query."""
    steps = SmtChain(smts).passage(name).steps
    assert steps == () or steps in variants(smts)
