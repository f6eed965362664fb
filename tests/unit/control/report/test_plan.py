"""The plan of a flow: which topics keep raw batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.report.plan import pass_through
from sparkmirror.control.topics.observation import Observation, PassThrough, TransformTopics
from sparkmirror.errors import ConfigError
from sparkmirror.settings import FlowSettings
from tests.unit.config_files import load_flow

_TWO = """\
A->B.sparkmirror.transforms = clean, mask
A->B.sparkmirror.transform.clean.topics = eu[.].*
A->B.sparkmirror.transform.clean.where = value IS NOT NULL
A->B.sparkmirror.transform.clean.select = key
A->B.sparkmirror.transform.mask.topics = cards
A->B.sparkmirror.transform.mask.select = NULL AS value
A->B.sparkmirror.transform.mask.tables = limits = csv:/c; people = jdbc
"""


class _Look(Observation):
    def __init__(self, flow: FlowSettings, *names: str) -> None:
        cluster: Any = SimpleNamespace()
        super().__init__(flow, cluster, cluster)
        self._names = names

    @property
    def mirrored(self) -> list[str]:
        return list(self._names)


def test_topics_with_a_transform_lose_their_raw_batches(tmp_path: Path) -> None:
    flow = load_flow(tmp_path, _TWO)
    assert pass_through(_Look(flow, "eu.a", "eu.b", "plain")) == PassThrough(
        (
            TransformTopics(
                "clean", ("eu.a", "eu.b"), "leaves out records (where), changes records (select)"
            ),
            TransformTopics(
                "mask", (), "changes records (select)", (("limits", "csv:/c"), ("people", "jdbc"))
            ),
        ),
        ("plain",),
    )


_SMTS = """\
A->B.transforms = secret, tests, route
A->B.transforms.secret.type = DropHeaders
A->B.transforms.secret.headers = secret
A->B.transforms.tests.type = Filter
A->B.transforms.tests.predicate = test
A->B.transforms.route.type = RegexRouter
A->B.transforms.route.regex = A[.](.*)
A->B.transforms.route.replacement = $1
A->B.predicates = test, named
A->B.predicates.test.type = HasHeaderKey
A->B.predicates.test.name = test
A->B.predicates.named.type = TopicNameMatches
A->B.predicates.named.pattern = A[.]eu.*
"""


def test_smts_that_need_no_spark_are_told_apart(tmp_path: Path) -> None:
    stays = "batches without changes stay raw, and Spark reads no records"
    found = pass_through(_Look(load_flow(tmp_path, _SMTS), "eu.a", "plain"))
    assert found is not None
    assert [(one.topics, one.reason) for one in found.transforms] == [
        (
            ("eu.a", "plain"),
            f"leaves out records (Filter), changes headers (DropHeaders); {stays}",
        )
    ]
    by_name = _SMTS.replace("predicate = test", "predicate = named").replace(
        "secret, tests", "tests"
    )
    found = pass_through(_Look(load_flow(tmp_path, by_name), "eu.a", "plain"))
    assert found is not None
    assert [(one.topics, one.reason) for one in found.transforms] == [
        (("eu.a",), f"leaves out records (Filter); {stays}")
    ]
    assert found.raw == ("plain",)
    routed = _SMTS.replace("type = RegexRouter", "type = TimestampRouter")
    routed = "".join(one for one in routed.splitlines(True) if "route.re" not in one)
    found = pass_through(_Look(load_flow(tmp_path, routed), "eu.a", "heartbeats"))
    assert found is not None
    assert [(one.topics, one.reason) for one in found.transforms if one.topics] == [
        (("heartbeats",), f"leaves out records (Filter), changes headers (DropHeaders); {stays}"),
        (
            ("eu.a",),
            "leaves out records (where), routes records and creates up to 100 topics for them "
            "(select)",
        ),
    ]


def test_a_flow_without_transforms_has_nothing_to_say(tmp_path: Path) -> None:
    assert pass_through(_Look(load_flow(tmp_path, "topics=t\n"), "t")) is None


def test_a_topic_of_two_transforms_is_an_error_of_the_plan(tmp_path: Path) -> None:
    """Lists that are too complex to compare when the file is read meet at a topic."""
    flow = load_flow(tmp_path, _TWO.replace("cards", "(?!x)eu[.]a"))
    with pytest.raises(ConfigError, match="matches the transforms clean and mask"):
        pass_through(_Look(flow, "eu.a"))


def test_the_plan_says_which_transform_may_create_topics(tmp_path: Path) -> None:
    routing = _TWO.replace("select = key", "select = key AS topic")
    for lines, told in (
        ("", "routes records and creates up to 100 topics for them (select)"),
        ("sparkmirror.routing.create.topics = false\n", "routes records (select)"),
    ):
        found = pass_through(_Look(load_flow(tmp_path, routing + lines), "eu.a"))
        assert found is not None
        assert found.transforms[0].reason == f"leaves out records (where), {told}"
    constant = load_flow(tmp_path, _TWO.replace("select = key", "select = 'x' AS topic"))
    found = pass_through(_Look(constant, "eu.a"))
    assert found is not None
    assert "creates" not in found.transforms[0].reason
