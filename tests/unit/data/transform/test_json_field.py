"""`get_json_object` by our scanner gives for every document what Spark's own gives."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_PATHS = ("$.a", "$.a.b", "$.a.id", "$.a-b")

_STRINGS = ['"EU"', '"a\\u00e9b"', '"ü€😀"', '""', '"\\ud83d"', '"a\\/b"', '"x\\"y"', '"\t"', "'q'"]
_NUMBERS = [
    *("0", "-0", "1", "-17", "1.50", "1e5", "01", "1.", "-", "+1", ".5", "1E+2", "NaN", "1e400"),
    *("123456789012345678", "1234567890123456789", "9" * 30, "-0.0", "7" * 1_100),
]
_WORDS = ["true", "false", "null", "nul", "True"]
_NAMES = ['"a"', '"b"', '"id"', '"a-b"', '"c"']
_ODD_NAMES = ['"\\u0061"', '"ä"', '""', "'a'", "a", '"a\\n"', '"' + "n" * 1_100 + '"']
_BYTES = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b",",
    b":",
    b"\xf0\x9f",
    b"\xe2",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xff",
]


def _plan(spark: SparkSession, *paths: str) -> TransformPlan:
    sql = ", ".join(f"get_json_object(CAST(value AS STRING), '{path}')" for path in paths)
    one = TransformSettings("clean", ("orders",), f"concat_ws('', {sql}) <> 'x'")
    return TransformPlan(spark, FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,)))


def _value(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(14)
    if kind < 3:
        return rng.choice(_STRINGS)
    if kind < 6:
        return rng.choice(_NUMBERS)
    if kind < 8 or depth > 3:
        return rng.choice(_WORDS)
    if kind < 11:
        return _object(rng, depth + 1)
    parts = [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return (
        f"[{rng.choice(['', ' '])}{rng.choice([',', ', ']).join(parts)}{rng.choice(['', '', ','])}]"
    )


def _object(rng: random.Random, depth: int) -> str:
    members = []
    for name in rng.sample(_NAMES, rng.randrange(len(_NAMES))):
        used = rng.choice([*_ODD_NAMES, '"a"']) if rng.random() < 0.1 else name
        blank = rng.choice(["", "", " ", "\n\t", "\r"])
        members.append(f"{blank}{used}{blank}:{blank}{_value(rng, depth)}{blank}")
    return "{" + ",".join(members) + rng.choice(["", "", "", "", ","]) + "}"


def _document(rng: random.Random) -> bytes:
    made = bytearray(_object(rng, 0).encode("utf-8", "surrogatepass"))
    if rng.random() < 0.2:
        made += rng.choice([b" ", b"x", b"}", b" {}", b"\0"])
    if rng.random() < 0.4:
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(made) + 1)
            made[at : at + rng.randrange(2)] = rng.choice(
                [*_BYTES, bytes([rng.randrange(256)]), b""]
            )
    return bytes(made)


_SPECIAL = [
    *(b"", b" ", b"{}", b"[]", b"null", b'"a"', b"\xef\xbb\xbf" + b'{"a":1}', b'{"a":1} {"a":2}'),
    b'{"a":' + b"[" * 70 + b"]" * 70 + b"}",
    b'{"c":' + b"[" * 1_100 + b"]" * 1_100 + b',"a":1}',
    b'{"a":1,"a":2}',
    b'{"a":null,"a":2}',
    b'{"a":{"b":1},"a":{"b":2}}',
    b'{"a":[{"b":1},{"b":2}]}',
    b'{"c":"' + b"z" * (1 << 20) + b'","a":1}',
    json.dumps({"c": "x" * 900, "a": "EU"}).encode(),
]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.more)])
def test_every_document_gives_what_spark_gives(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    documents = [*_SPECIAL, None, *(_document(rng) for _ in range(6_000))]
    rows = [(None if one is None else bytearray(one),) for one in documents]
    calls = [f"CAST(get_json_object(CAST(value AS STRING), '{path}') AS BINARY)" for path in _PATHS]
    ours = _plan(spark, *_PATHS).session
    found = ours.createDataFrame(rows, "value binary").selectExpr(*calls)
    plan = found._jdf.queryExecution().optimizedPlan().toString()
    assert all(f"get_json_object[{path}]" in plan for path in _PATHS), plan
    wanted = spark.newSession().createDataFrame(rows, "value binary").selectExpr(*calls)
    assert "get_json_object[" not in wanted._jdf.queryExecution().optimizedPlan().toString()
    some = 0
    for document, one, other in zip(documents, wanted.collect(), found.collect(), strict=True):
        assert tuple(one) == tuple(other), document
        some += sum(each is not None for each in one)
    assert some > 300


def test_usual_documents_are_not_left_to_spark(spark: SparkSession) -> None:
    """They have a text, a whole number, a word, or no such field."""
    from sparkmirror.data.transform.functions import _FIELD_SOURCES, class_loader

    context = spark.sparkContext
    gateway = context._gateway
    find = class_loader(context, _FIELD_SOURCES).loadClass("sparkmirror.JsonField")
    arguments = gateway.new_array(gateway.jvm.java.lang.Object, 1)
    arguments[0] = "$.user.id"
    field = find.getConstructors()[0].newInstance(arguments)
    for value, wanted in (('"x"', "x"), ("17", "17"), ("-3", "-3"), ("true", "true")):
        for text in (
            f'{{"n": [1.5, null, {{"id": "ü"}}], "user": {{"id": {value}}}, "z": "\\n"}}',
            f' {{"user":{{"name":"\\u00e9","id":{value}}}}} ',
        ):
            document = gateway.jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
            assert str(field.known(document)) == wanted
    none = gateway.jvm.org.apache.spark.unsafe.types.UTF8String.fromString('{"user": {"a": 1}}')
    assert field.known(none) is None
    unsure = gateway.jvm.org.apache.spark.unsafe.types.UTF8String.fromString(
        '{"user": {"id": 1.5}}'
    )
    assert str(field.known(unsure)) == "unsure"


def test_other_paths_are_sparks(spark: SparkSession) -> None:
    documents = _plan(spark, "$.a").session.createDataFrame([('{"a": [1]}',)], "v string")
    for path in ("$", "$.a[0]", "$['a']", "$.*", "$.a b", "a", "$.ä"):
        escaped = path.replace("'", "\\'")
        frame = documents.selectExpr(f"get_json_object(v, '{escaped}')")
        plan = frame._jdf.queryExecution().optimizedPlan().toString()
        assert "get_json_object[" not in plan, path
