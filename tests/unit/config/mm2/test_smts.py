"""Single message transforms in MirrorMaker 2's files: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkmirror.config.explain import explain
from sparkmirror.config.mm2.load import load_mm2, read_mm2
from sparkmirror.config.mm2.smt_sql import smt_sql
from sparkmirror.config.mm2.smts import OTHERS
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.errors import ConfigError
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import MirrorSettings
from sparkmirror.transform_settings import SmtSettings
from tests.vectors import load

VECTORS = load("smts")
_HEAD = ["clusters = A, B", "A.bootstrap.servers = h:1", "B.bootstrap.servers = h:2"]
_ON = "A->B.enabled = true"


def _written(path: Path, keys: dict[str, str], *more: str) -> Path:
    lines = [f"{key} = {value.replace(chr(92), 2 * chr(92))}" for key, value in keys.items()]
    path.write_text("\n".join([*_HEAD, _ON, *lines, *more]) + "\n", encoding="utf-8")
    return path


def _loaded(path: Path, keys: dict[str, str], *more: str) -> MirrorSettings:
    return load_mm2(_written(path, {f"A->B.{key}": one for key, one in keys.items()}, *more))


def _refused(path: Path, keys: dict[str, str], *more: str) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        _loaded(path, keys, *more)
    return raised.value


def _keys(kind: str, predicate: str = "", **options: str) -> dict[str, str]:
    keys = {"transforms": "a", "transforms.a.type": kind}
    keys |= {f"transforms.a.{key.replace('_', '.')}": value for key, value in options.items()}
    if predicate:
        keys |= {"transforms.a.predicate": "p", "predicates": "p", "predicates.p.type": predicate}
    return keys


def _id(case: dict[str, Any]) -> str:
    return ";".join(f"{key}={value}" for key, value in case["config"].items())[-60:]


@pytest.mark.parametrize("case", VECTORS["refused"], ids=_id)
def test_what_fails_in_java_is_refused_at_the_start(case: dict[str, Any], tmp_path: Path) -> None:
    """Java refuses the configuration, or its task fails at the first record."""
    result = case.get("error") or case["results"][0]["error"]
    assert "Exception: " in result
    error = _refused(tmp_path / "mm2.properties", case["config"])
    assert f"{tmp_path / 'mm2.properties'}:" in error.where
    assert error.do


@pytest.mark.parametrize("case", VECTORS["chains"][:40] + VECTORS["times"][:20], ids=_id)
def test_what_java_starts_is_loaded(case: dict[str, Any], tmp_path: Path) -> None:
    settings = _loaded(tmp_path / "mm2.properties", case["config"])
    (flow,) = settings.flows
    assert [one.name for one in flow.topics.smts] == case["config"]["transforms"].split(", ")
    assert decode_flow(encode_flow(flow)).topics == flow.topics
    assert decode_flow(encode_flow(flow)).transforms == flow.transforms


@pytest.mark.parametrize("case", VECTORS["files"], ids=lambda case: str(len(case["file"])))
def test_keys_count_where_java_reads_them(case: dict[str, Any], tmp_path: Path) -> None:
    """All connectors of a flow get them: in Java, SMTs also change checkpoints and heartbeats."""
    given = case["connectors"]
    assert given["MirrorSourceConnector"] == given["MirrorCheckpointConnector"]
    assert given["MirrorSourceConnector"] == given["MirrorHeartbeatConnector"]
    keys = {key: value for key, value in case["file"].items() if "transf" in key or "predic" in key}
    more = {"A->B.transforms.a.type", "A->B.transforms.b.type", "A->B.predicates.p.type"}
    extra = {one: "RecordIsTombstone" if "predicates" in one else "Filter" for one in more}
    path = _written(tmp_path / "mm2.properties", extra | keys)
    (flow,) = load_mm2(path).flows
    wanted = given["MirrorSourceConnector"].get("transforms")
    assert [one.name for one in flow.topics.smts] == [wanted]
    lost = {key for key in keys if "->" not in key and "." in key}
    said = " ".join(load_mm2(path).warnings)
    assert all(f"write A->B.{key}" in said or f"A->B.{key}" in said for key in lost)
    path.write_text(path.read_text().replace("A->B.transforms.", "transforms."))
    with pytest.raises(ConfigError, match=r"A->B\.transforms\.\w\.type is missing"):
        load_mm2(path)


def test_places_and_reasons_of_errors(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    error = _refused(path, _keys("InsertHeader", header="h", value_literal="text"))
    assert error.where == f"{path}:8"
    assert "A->B.transforms.a.value.literal cannot be used" in str(error)
    assert "ByteArrayConverter" in str(error)
    assert "concat(headers" in str(error.do)
    error = _refused(path, _keys("org.apache.kafka.connect.transforms.MaskField$Value"))
    assert error.where == f"{path}:6"
    assert "MaskField$Value cannot be used: it needs records with fields" in str(error)
    assert "mask_json(" in str(error.do)
    error = _refused(path, _keys("Filter", predicte="p"))
    assert "A->B.transforms.a.predicte is no setting of Filter" in str(error)
    error = _refused(path, _keys("my.Own"))
    assert "my.Own cannot be used: Java classes cannot be loaded" in str(error)
    routed = _keys("RegexRouter", "RecordIsTombstone", regex="a", replacement="b")
    error = _refused(path, routed)
    assert "with RecordIsTombstone, records of one topic would go to several" in str(error)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    keys = _keys("Cast$Key") | {"transforms": "a, b", "transforms.b.type": "DropHeaders"}
    said = str(_refused(tmp_path / "mm2.properties", keys))
    assert "Cast$Key cannot be used" in said
    assert "A->B.transforms.b.headers is missing" in said


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        (
            ("sparkmirror.transforms = c", "sparkmirror.transform.c.topics = t",
             "sparkmirror.transform.c.where = true"),
            _keys("Filter"),
        ),
        (("sparkmirror.topics.map = a => b",), _keys("RegexRouter", regex="a", replacement="b")),
    ],
)  # fmt: skip
def test_smts_and_what_does_the_same_are_not_mixed(
    more: tuple[str, ...], keys: dict[str, str], tmp_path: Path
) -> None:
    error = _refused(tmp_path / "mm2.properties", keys, *more)
    assert f"{more[0].partition(' ')[0]} and A->B.transforms cannot be used together" in str(error)
    assert error.where == f"{tmp_path / 'mm2.properties'}:{5 + len(keys)}"


def test_a_map_and_smts_that_keep_names(tmp_path: Path) -> None:
    """SMTs see the name that the map gives, as it is the remote topic's."""
    keys = _keys("Filter", "TopicNameMatches") | {"predicates.p.pattern": "new"}
    settings = _loaded(tmp_path / "mm2.properties", keys, "sparkmirror.topics.map = old => new")
    names = FlowTopics(settings.flows[0])
    assert [names.smts(topic) for topic in ("old", "new")] == [(0,), ()]


def test_too_many_conditions(tmp_path: Path) -> None:
    aliases = [f"p{number}" for number in range(6)]
    keys = {"transforms": ",".join(aliases), "predicates": ",".join(aliases)}
    for one in aliases:
        keys |= {
            f"transforms.{one}.type": "DropHeaders",
            f"transforms.{one}.headers": one,
            f"transforms.{one}.predicate": one,
            f"predicates.{one}.type": "TopicNameMatches",
            f"predicates.{one}.pattern": one,
        }
    assert "depends on 6 patterns" in str(_refused(tmp_path / "mm2.properties", keys))
    keys["predicates.p5.pattern"] = "p4"
    (flow,) = _loaded(tmp_path / "mm2.properties", keys).flows
    assert len(flow.transforms) == 2**5 - 1


def test_keys_that_no_list_names_are_ignored(tmp_path: Path) -> None:
    keys = _keys("Filter") | {"transforms.b.type": "no.Class", "predicates.q.type": "no.Class"}
    path = tmp_path / "mm2.properties"
    _loaded(path, keys)
    idle = {use.entry.key: use.ignored for use in read_mm2(path).uses if use.ignored}
    assert idle == {
        "A->B.transforms.b.type": "A->B.transforms does not name it",
        "A->B.predicates.q.type": "A->B.predicates does not name it",
    }
    (flow,) = explain(path).flows
    assert {one.key for one in flow.settings} >= {
        *("transforms", "predicates", "transforms.a.type", "transforms.b.type")
    }


def test_names_that_meet_and_loops(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    settings = _loaded(path, _keys("RegexRouter", regex=".*", replacement="all"))
    (said,) = [one for one in settings.warnings if "may get the same name" in one]
    assert f"{path}:5: A->B.transforms: two topics of A" in said
    keys = _keys("RegexRouter", regex="[AB]\\.(.*)", replacement="$1")
    both = {f"{flow}.{key}": value for flow in ("A->B", "B->A") for key, value in keys.items()}
    with pytest.raises(ConfigError, match="a topic would be copied endlessly"):
        load_mm2(_written(path, both, "B->A.enabled = true"))


def test_sql_keeps_odd_names_as_text() -> None:
    where, select = smt_sql(
        [
            SmtSettings("a", "DropHeaders", headers=("it's", "plain")),
            SmtSettings("b", "Filter", predicate="HasHeaderKey", argument="${x}"),
        ]
    )
    assert "it's" not in select
    assert "'plain'" in select
    assert "${x}" not in where


def test_each_class_of_kafka_is_refused_by_name() -> None:
    known = {"Cast", "ExtractField", "Flatten", "HeaderFrom", "HoistField", "InsertField"}
    known |= {"MaskField", "ReplaceField", "SetSchemaMetadata", "TimestampConverter"}
    assert OTHERS.keys() == known | {"ValueToKey"}


@pytest.mark.parametrize(
    ("time_format", "said"),
    [
        ("yyyy-MMM", "MMM (the name of the month) depends on the locale"),
        ("LLLL", "LLLL (the name of the month) depends on the locale"),
        ("E", "E (the name of the day) depends on the locale"),
        ("hha", "a (AM or PM) depends on the locale"),
        ("YYYY", "YYYY (the year of the week) depends on the locale"),
        ("yyyy-ww", "ww (the week) depends on the locale"),
        ("W", "W (the week) depends on the locale"),
        ("z", "z (the name of the time zone) depends on the locale"),
        ("G", "G (the era) depends on the locale"),
        ("yyyy'", "a quote is not closed"),
        ("yyyyb", "b is no pattern of SimpleDateFormat"),
        ("HH:mm", "gives names with ':', which topics cannot have"),
        ("yyyyZ", "gives names with '+', which topics cannot have"),
        ("yyyy''", "which topics cannot have"),
        ("yyyy MM", "gives names with ' '"),
    ],
)
def test_times_that_cannot_be_named_exactly(time_format: str, said: str, tmp_path: Path) -> None:
    keys = _keys("TimestampRouter") | {"transforms.a.timestamp.format": time_format}
    error = _refused(tmp_path / "mm2.properties", keys)
    assert "A->B.transforms.a.timestamp.format " in str(error)
    assert said in str(error)
    assert error.where == f"{tmp_path / 'mm2.properties'}:7"


def test_a_topic_format_with_other_references(tmp_path: Path) -> None:
    keys = _keys("TimestampRouter") | {"transforms.a.topic.format": "${name}-${timestamp}"}
    error = _refused(tmp_path / "mm2.properties", keys)
    assert "A->B.transforms.a.topic.format gives names with '$' and '{' and '}'" in str(error)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            {"transforms.b.type": "RegexRouter", "transforms.b.regex": "a",
             "transforms.b.replacement": "b"},
            "transforms.b.type cannot be used after a (TimestampRouter)",
        ),
        (
            {"transforms.b.type": "Filter", "transforms.b.predicate": "p", "predicates": "p",
             "predicates.p.type": "TopicNameMatches", "predicates.p.pattern": "x"},
            "transforms.b.predicate cannot be used after a (TimestampRouter)",
        ),
    ],
)  # fmt: skip
def test_what_needs_one_name_per_topic_comes_before(
    after: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mm2.properties"
    keys = _keys("TimestampRouter") | after
    error = _refused(path, keys | {"transforms": "a, b"})
    assert said in str(error)
    assert "Write b before a in A->B.transforms" in str(error.do)
    _loaded(path, keys | {"transforms": "b, a"})


def test_a_timestamp_router_routes_and_says_what_does_not_hold(tmp_path: Path) -> None:
    settings = _loaded(tmp_path / "mm2.properties", _keys("TimestampRouter"))
    (flow,) = settings.flows
    (one,) = flow.transforms
    assert (one.routes, one.steps, flow.topics.renamed) == (True, (0,), False)
    (said,) = [one for one in settings.warnings if "routes" in one]
    assert "A->B.transforms: TimestampRouter routes records by their time: for these" in said
    names = FlowTopics(flow)
    assert [names.remote(one) for one in ("t", "heartbeats")] == ["A.t", "A.heartbeats"]
    assert [names.smts(one) for one in ("t", "heartbeats")] == [(0,), ()]


def test_a_replacement_may_be_empty(tmp_path: Path) -> None:
    """As in Java, which searches again, and here finds the first alternative."""
    keys = _keys("RegexRouter", regex="A[.]|A[.].*", replacement="")
    (flow,) = _loaded(tmp_path / "mm2.properties", keys).flows
    assert FlowTopics(flow).remote("orders") == "orders"
