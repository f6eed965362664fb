"""Transforms in MirrorMaker 2's files: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.config.explain import explain
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.data.coordination.sealed_options import KEY_VARIABLE, new_key
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.data.spark.ports import secrets_of
from sparkmirror.errors import ConfigError
from sparkmirror.names.transforms import Transformed
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import TableSettings

_SALT = "0123456789abcdef"
_KEY = "A->B.sparkmirror.transform"
_LISTED = "A->B.sparkmirror.transforms = clean, other"
_CLEAN = (f"{_KEY}.clean.topics = orders.*", f"{_KEY}.clean.where = a, b > 1 = x")
_OTHER = (f"{_KEY}.other.topics = carts", f"{_KEY}.other.select = key")


def _flows(path: Path, *lines: str, more: str = "") -> tuple[FlowSettings, ...]:
    head = ["clusters = A, B", "A->B.enabled = true", more]
    head += [f"{alias}.bootstrap.servers = localhost:1{alias == 'B':d}" for alias in "AB"]
    path.write_text("\n".join([*head, *lines]) + "\n")
    return load_mm2(path).flows


def test_transforms_in_order_with_sql_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    (flow,) = _flows(path, _LISTED, *_CLEAN, *_OTHER)
    clean, other = flow.transforms
    assert (clean.name, clean.topics, clean.where, clean.select) == (
        *("clean", ("orders.*",)),
        *("a, b > 1 = x", ""),
    )
    assert (other.name, other.where, other.select) == ("other", "", "key")
    assert clean.place("where") == f"{path}:8: {_KEY}.clean.where"
    assert decode_flow(encode_flow(flow)).transforms == flow.transforms


def test_a_python_function_in_the_place_of_sql(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flows(path, _LISTED, *_CLEAN, _OTHER[0], f"{_KEY}.other.python = jobs.mirror:clean")
    (flow,) = load_mm2(path).flows
    clean, other = flow.transforms
    assert (clean.python, other.python) == ("", "jobs.mirror:clean")
    assert (other.where, other.select) == ("", "")
    assert other.place("python") == f"{path}:10: {_KEY}.other.python"
    assert decode_flow(encode_flow(flow)).transforms == flow.transforms
    shown = {one.key: one.value for one in explain(path).flows[0].settings}
    assert shown["sparkmirror.transform.other.python"] == "jobs.mirror:clean"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_transform_has_a_codec_of_its_own(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "mm2.properties"
    more = f"sparkmirror.transform.clean.compression = {codec}"
    (flow,) = _flows(path, _LISTED, *_CLEAN, *_OTHER, more=more)
    assert [one.compression for one in flow.transforms] == [codec, ""]
    assert decode_flow(encode_flow(flow)).transforms == flow.transforms
    shown = {one.key: one.value for one in explain(path).flows[0].settings}
    assert shown["sparkmirror.transform.clean.compression"] == codec


def test_a_topic_belongs_to_one_transform_or_none(tmp_path: Path) -> None:
    (flow,) = _flows(tmp_path / "mm2.properties", _LISTED, *_CLEAN, *_OTHER)
    transformed = Transformed(flow)
    topics = ("orders", "orders.eu", "carts", "carts2", "my.orders")
    assert [transformed.number(one) for one in topics] == [0, 0, 1, -1, -1]


def test_keys_without_a_flow_are_for_all_and_the_flow_overrides_them(tmp_path: Path) -> None:
    flows = _flows(
        tmp_path / "mm2.properties",
        "sparkmirror.transforms = clean",
        "sparkmirror.transform.clean.topics = t",
        "sparkmirror.transform.clean.where = 1",
        "B->A.sparkmirror.transform.clean.where = 2",
        more="B->A.enabled = true",
    )
    assert {flow.name: flow.transforms[0].where for flow in flows} == {"A->B": "1", "B->A": "2"}


def test_a_transform_for_all_flows_that_none_has_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flows(path, "sparkmirror.transform.clean.topics = t")
    (warning,) = [one for one in load_mm2(path).warnings if "transform" in one]
    assert "no flow has a transform clean (sparkmirror.transforms)" in warning


def test_a_salt_without_a_transform_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flows(path, f"A->B.sparkmirror.hash.salt = {_SALT}")
    (warning,) = [one for one in load_mm2(path).warnings if "hash.salt" in one]
    assert "no flow has a transform (sparkmirror.transforms)" in warning
    assert _SALT not in warning
    _flows(path, f"A->B.sparkmirror.hash.salt = {_SALT}", _LISTED, *_CLEAN, *_OTHER)
    assert not [one for one in load_mm2(path).warnings if "hash.salt" in one]


def test_without_the_key_nothing_is_transformed(tmp_path: Path) -> None:
    (flow,) = _flows(tmp_path / "mm2.properties")
    assert flow.transforms == ()
    assert Transformed(flow).number("orders") == -1


def test_the_page_of_a_file_names_each_transform_and_no_placeholder(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flows(path, _LISTED, *_CLEAN, *_OTHER)
    (flow,) = explain(path).flows
    shown = {one.key: one.value for one in flow.settings if "transform" in one.key}
    assert shown["sparkmirror.transform.clean.where"] == "a, b > 1 = x"
    assert shown["sparkmirror.transform.other.select"] == "key"
    assert not any("NAME" in key for key in shown)


def test_a_transform_that_routes_says_what_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    routing = (_CLEAN[0], f"{_KEY}.clean.select = concat('clean.', topic) AS topic")
    (flow,) = _flows(path, _LISTED, *routing, *_OTHER)
    assert [one.routes for one in flow.transforms] == [True, False]
    (said,) = [one for one in load_mm2(path).warnings if "routes" in one]
    assert said.startswith(f"{path}:8: {_KEY}.clean.select: the transform clean routes records")
    assert "orders.*" in said
    assert "offsets of consumer groups are not translated" in said
    _flows(path, _LISTED, *_CLEAN, *_OTHER)
    assert not [one for one in load_mm2(path).warnings if "routes" in one]


def test_functions_are_a_list(tmp_path: Path) -> None:
    own = f"{_KEY}.clean.functions = mine.sql:register, mine.java:register"
    (flow,) = _flows(tmp_path / "mm2.properties", _LISTED, *_CLEAN, *_OTHER, own)
    clean, other = flow.transforms
    assert (clean.functions, other.functions) == (("mine.sql:register", "mine.java:register"), ())


def test_tables_with_options_of_their_readers(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    tables = "customers = parquet:/data/customers; limits = CSV : /data/limits.csv;people=jdbc"
    (flow,) = _flows(
        path, _LISTED, *_CLEAN, *_OTHER,
        f"{_KEY}.clean.tables = {tables}",
        f"{_KEY}.clean.table.limits.schema = code STRING, most DECIMAL(10, 2)",
        f"{_KEY}.clean.table.limits.option.sep = |",
        f"{_KEY}.clean.table.people.option.driver.version = 2",
        f"{_KEY}.clean.table.people.option.password = hidden-from-all",
    )  # fmt: skip
    clean, other = flow.transforms
    assert clean.tables == (
        TableSettings("customers", "parquet", "/data/customers"),
        TableSettings(
            "limits", "CSV", "/data/limits.csv", "code STRING, most DECIMAL(10, 2)", (("sep", "|"),)
        ),
        TableSettings(
            "people", "jdbc", "", "", (("driver.version", "2"), ("password", "hidden-from-all"))
        ),
    )
    assert other.tables == ()
    assert clean.place("tables") == f"{path}:11: {_KEY}.clean.tables"
    shown = {one.key: one.value for one in explain(path).flows[0].settings}
    name = "sparkmirror.transform.clean"
    assert shown[f"{name}.tables"] == tables
    assert shown[f"{name}.table.limits.option.sep"] == "|"
    assert shown[f"{name}.table.people.option.password"] == "[hidden]"
    assert not any("TABLE" in key or "OPTION" in key for key in shown)
    # No worker needs them: Spark's driver reads tables.
    assert "hidden-from-all" not in repr(flow) + encode_flow(flow, new_key())
    assert decode_flow(encode_flow(flow)).transforms[0].tables == ()


def test_transforms_may_name_the_same_table(tmp_path: Path) -> None:
    tables = [f"{_KEY}.{one}.tables = a = csv:/a" for one in ("clean", "other")]
    (flow,) = _flows(tmp_path / "mm2.properties", _LISTED, *_CLEAN, *_OTHER, *tables)
    assert [len(one.tables) for one in flow.transforms] == [1, 1]


@pytest.mark.parametrize(
    ("option", "value"), [("functions", "nosuch:thing"), ("tables", "cust = parquet:/nowhere")]
)
def test_a_handler_does_not_use_functions_or_tables(
    tmp_path: Path, option: str, value: str
) -> None:
    """Transforms of one flow share them, so they may stand beside a handler if others are SQL."""
    path = tmp_path / "mm2.properties"
    handlers = (_OTHER[0], f"{_KEY}.other.handler = json:loads", f"{_KEY}.other.{option} = {value}")
    with pytest.raises(ConfigError) as raised:
        _flows(path, "A->B.sparkmirror.transforms = other", *handlers)
    assert str(raised.value) == (
        f"{path}:9: {_KEY}.other.{option}: the transform other has a handler, which cannot use "
        f"{option}. Remove the key, or put it on a transform with where, select or python."
    )
    (flow,) = _flows(path, _LISTED, *_CLEAN, *handlers)
    assert flow.transforms[1].functions or flow.transforms[1].tables
    python = (_CLEAN[0], f"{_KEY}.clean.python = mine:clean")
    (flow,) = _flows(path, _LISTED, *python, *handlers)
    assert flow.transforms[1].functions or flow.transforms[1].tables


def test_the_salt_of_hashes_is_shown_nowhere(tmp_path: Path) -> None:
    """Neither in what `explain` prints, nor in options of Spark's query; no worker gets it."""
    path = tmp_path / "mm2.properties"
    (flow,) = _flows(path, f"A->B.sparkmirror.hash.salt = {_SALT}")
    assert flow.hash_salt == _SALT
    assert _SALT not in repr(flow) + encode_flow(flow, new_key()) + str(explain(path))
    assert decode_flow(encode_flow(flow)).hash_salt == ""


def test_executors_get_the_salt_only_where_it_is_safe_in_transit(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flows(path, f"sparkmirror.hash.salt = {_SALT}")
    assert secrets_of(load_mm2(path)) == ["B"]
    _flows(path)
    assert secrets_of(load_mm2(path)) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((_LISTED, *_CLEAN), "the transform other of sparkmirror.transforms has no topics"),
        ((_LISTED, *_CLEAN, _OTHER[0]), "the transform other does nothing"),
        ((_CLEAN[0],), "A->B has no transform clean. Add clean to A->B.sparkmirror.transforms"),
        (
            (_LISTED, *_CLEAN, f"{_KEY}.other.topics = .*s", _OTHER[1]),
            "the transforms clean and other both match topics: for example, 'orders",
        ),
        (
            (f"A->B.sparkmirror.hash.salt = {_SALT[1:]}",),
            "A->B.sparkmirror.hash.salt has 15 characters, so it could be guessed",
        ),
        (("A->B.sparkmirror.transforms = a.b",), "'a.b' is not a name for a transform"),
        ((_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.topics = ["), "clean.topics"),
        ((_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.wher = x"), "clean.wher is unknown"),
        (
            (_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.compression = lzma"),
            "clean.compression=lzma is not one of the values it can have. Choose from: none, gzip",
        ),
        (
            (_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.python = a:b"),
            "clean.python cannot be used together with A->B.sparkmirror.transform.clean.where",
        ),
        (
            (_LISTED, *_CLEAN, _OTHER[0], f"{_KEY}.other.python = a.b"),
            "other.python: 'a.b' is not module:function",
        ),
        *(
            (
                (_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.tables = {tables}"),
                f"{_KEY}.clean.tables: {said}",
            )
            for tables, said in (
                ("/data/customers", "'/data/customers' is not a table. Write NAME = FORMAT:PATH"),
                ("a = /data/a", "'a = /data/a' is not a table"),
                ("a = s3a://bucket/a", "'a = s3a://bucket/a' is not a table"),
                ("a b = csv:/a", "'a b = csv:/a' is not a table"),
                ("a = csv:/a; a = csv:/b", "the table a is there twice"),
                ("a = jdbc:postgresql://h/d?user=u", "the table a has an address where other"),
            )
        ),
        (
            (_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.table.b.schema = id INT"),
            "clean.table.b.schema: the transform has no table b. Add b to its tables",
        ),
        (
            (_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.table.b.header = true"),
            "clean.table.b.header is unknown",
        ),
        (
            (
                *(_LISTED, *_CLEAN, *_OTHER, f"{_KEY}.clean.tables = a = csv:/a"),
                f"{_KEY}.other.tables = a = csv:/b",
            ),
            "the transforms clean and other both name a table a, and mean different ones",
        ),
    ],
)
def test_what_is_refused(lines: tuple[str, ...], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    with pytest.raises(ConfigError) as caught:
        _flows(path, *lines)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


_CREATE = "A->B.sparkmirror.routing.create.topics"


def test_how_many_topics_may_be_created_for_routed_records(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    routing = (_LISTED, *_CLEAN, _OTHER[0], f"{_KEY}.other.select = x AS topic")
    for lines, most in (
        ((), 100),
        ((f"{_CREATE}.max = 7",), 7),
        ((f"{_CREATE} = false",), 0),
        ((f"{_CREATE} = false", f"{_CREATE}.max = 7"), 0),
    ):
        (flow,) = _flows(path, *routing, *lines)
        assert flow.routed_topics_max == most
        assert decode_flow(encode_flow(flow)).routed_topics_max == most
        assert not [one for one in load_mm2(path).warnings if "create.topics" in one]
    with pytest.raises(ConfigError, match=r"create\.topics\.max"):
        _flows(path, *routing, f"{_CREATE}.max = 1001")


def test_settings_about_created_topics_without_routing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flows(path, _LISTED, *_CLEAN, *_OTHER, f"{_CREATE}.max = 7")
    (warning,) = [one for one in load_mm2(path).warnings if "create.topics" in one]
    assert "no flow routes records by their content (select = … AS topic)" in warning


def test_a_handler_in_the_place_of_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mm2.properties"
    handler = (_OTHER[0], f"{_KEY}.other.handler = mirrors:mask", f"{_KEY}.other.args = sesame, b")
    (flow,) = _flows(path, _LISTED, *_CLEAN, *handler)
    clean, other = flow.transforms
    assert (clean.handler, clean.handler_args) == ("", None)
    assert (other.handler, other.handler_args, other.routes) == ("mirrors:mask", "sesame, b", False)
    # The text may be a key with which the handler encrypts: Spark shows its options.
    key = new_key()
    assert "sesame" not in repr(flow.transforms) + encode_flow(flow, key)
    monkeypatch.setenv(KEY_VARIABLE, key)
    assert decode_flow(encode_flow(flow, key)).transforms == flow.transforms


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            (f"{_KEY}.other.handler = m:f", f"{_KEY}.other.where = true"),
            "other.handler cannot be used together with A->B.sparkmirror.transform.other.where",
        ),
        (
            (f"{_KEY}.other.handler = m:f", f"{_KEY}.other.python = m:f"),
            "cannot be used together with",
        ),
        ((f"{_KEY}.other.handler = m",), "'m' is not module:function"),
        (
            (f"{_KEY}.other.where = true", f"{_KEY}.other.args = x"),
            "the transform other has no handler that would get it",
        ),
    ],
)
def test_handlers_that_are_refused(lines: tuple[str, ...], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    with pytest.raises(ConfigError) as caught:
        _flows(path, _LISTED, *_CLEAN, _OTHER[0], *lines)
    assert said in str(caught.value)
    assert f"{path}:" in caught.value.where
    assert caught.value.do


@pytest.mark.parametrize("option", ["tables", "python", "handler"])
def test_a_value_from_a_provider_is_not_shown(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = "config.providers.env.class=org.apache.kafka.common.config.provider."
    lines = ("config.providers = env", f"{provider}EnvVarConfigProvider")
    monkeypatch.setenv("VALUE", "jdbc;//db?password=planted")
    with pytest.raises(ConfigError) as caught:
        _flows(
            tmp_path / "mm2.properties",
            *(_LISTED, *_CLEAN, *_OTHER[: 1 + (option == "tables")], *lines),
            f"{_KEY}.other.{option} = ${{env:VALUE}}",
        )
    assert f"{_KEY}.other.{option}: " in str(caught.value)
    assert "planted" not in str(caught.value)


def test_the_ring_is_reported_where_spark_needs_all_rows(tmp_path: Path) -> None:
    path, key = tmp_path / "mm2.properties", "sparkmirror.ring.enabled"
    (flow,) = _flows(path, f"{key} = false")
    assert not flow.ring
    (flow,) = _flows(path, _LISTED, *_CLEAN, *_OTHER)
    assert not flow.uses_ring
    assert not any(key in line for line in load_mm2(path).warnings), "nobody has asked for it"
    (flow,) = _flows(path)
    assert flow.uses_ring
    assert decode_flow(encode_flow(flow)).uses_ring
    assert not any(key in line for line in load_mm2(path).warnings)

    transformed = (_LISTED, *_CLEAN, *_OTHER)
    (flow,) = _flows(path, f"A->B.{key} = true", *transformed)
    assert flow.ring
    assert not flow.uses_ring
    (line,) = (line for line in load_mm2(path).warnings if key in line)
    assert "a transform is between source and sink" in line

    back = "B->A.enabled = true"
    _flows(path, f"{key} = true", *transformed, more=back)
    assert not any(key in line for line in load_mm2(path).warnings), "the way back uses it"
    _flows(path, f"{key} = true", f"A->B.{key} = true", *transformed, more=back)
    (line,) = (line for line in load_mm2(path).warnings if key in line)
    assert f"A->B.{key}" in line
