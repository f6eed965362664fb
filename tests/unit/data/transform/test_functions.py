"""`mask_json`, `hash_json`, `drop_json` and `header` in a real Spark, against Python's own JSON."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sparkmirror.data.transform.columns import COLUMNS, HIDDEN
from sparkmirror.data.transform.functions import register_functions
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.tables import Tables
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_SALT = "a salt of 16 bytes"
_FAILED = "failed"


def _flow(select: str = "", where: str = "", salt: str = _SALT) -> FlowSettings:
    places = (("where", "file:7: key.where"), ("select", "file:8: key.select"))
    one = TransformSettings("clean", ("orders",), where, select, places)
    return FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,), hash_salt=salt)


def _made(spark: SparkSession, sql: str, documents: list[bytes | None]) -> list[bytes | str | None]:
    """The values that the transform ``sql AS value`` makes of ``documents``, in order."""
    return _each_made(spark, [sql], [(0, one) for one in documents])


def _each_made(
    spark: SparkSession, sqls: list[str], documents: list[tuple[int, bytes | None]]
) -> list[bytes | str | None]:
    """As `_made` with one of several transforms, by its number: a query costs half a second."""
    flow = _flow()
    transforms = [replace(flow.transforms[0], select=f"{sql} AS value") for sql in sqls]
    plan = TransformPlan(spark, replace(flow, transforms=tuple(transforms)))
    rows = [
        (None, None, number, at, None if one is None else bytearray(one))
        for at, (number, one) in enumerate(documents)
    ]
    schema = f"{HIDDEN}, value binary"
    found: list[bytes | str | None] = []
    made = plan.transformed(plan.session.createDataFrame(rows, schema)).collect()
    for row, (number, _) in zip(made, documents, strict=True):
        result = row[f"t{number}"]
        if result is None:
            found.append(_FAILED)
            continue
        value = result["record"]["value"]
        found.append(None if value is None else bytes(value))
    return found


_KEPT_BYTES = [
    (b'{"card":"1"}', b'{"card":"***"}'),
    (b' {\n"a" : 1.50 , "card"\t:\r"4111" ,"b":1e400} ',
     b' {\n"a" : 1.50 , "card"\t:\r"***" ,"b":1e400} '),
    (b'{"n":123456789012345678901234567890,"card":{"x":[1,{}]},"m":-0.0}',
     b'{"n":123456789012345678901234567890,"card":"***","m":-0.0}'),
    (b'{"e":"\\u00e9\\/\\ud83d\\ude00","card":[1,"]"]}',
     b'{"e":"\\u00e9\\/\\ud83d\\ude00","card":"***"}'),
    (b'{"card":null}', b'{"card":"***"}'),
    (b'{"card":"a","card":2}', b'{"card":"***","card":"***"}'),
    (b'{"c\\u0061rd":"a\\"b"}', b'{"c\\u0061rd":"***"}'),
    ('{"é":"ü€😀","card":true}'.encode(), '{"é":"ü€😀","card":"***"}'.encode()),
]  # fmt: skip
_UNCHANGED = [
    *(b"{}", b"[]", b" [ 1 , 2.50 ] ", b"1", b"-1.5E+3", b'"card"', b"null", b"true"),
    b'{"Card":1,"cards":2,"car":3}',
    b'[{"card":1}]',
    b'{"a":{"card":1},"b":[{"card":2}]}',
    b'{"a":"\\"card\\":\\"1\\""}',
    b'{"card ":1,"\\u0063ards":1}',
]
_NO_JSON = [
    *(b"", b" ", b"x", b"{", b"}", b"[1", b"tru", b"nul", b"01", b"1.", b".5", b"-", b"1e", b"+1"),
    *(b"NaN", b"Infinity", b"'a'", b'"a', b'"\n"', b'"\\x"', b'"\\u12g4"', b'"\\u12', b"[1,]"),
    *(b"[,1]", b"[1 2]", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{a:1}", b'{"a":1 "b":2}', b"{1:2}"),
    *(b"{} {}", b"1 2", b"[1]]", b'{"a":1}x', b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\x00"),
    *(b'"\xff"', b'"\xc3"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\x80"'),
    *(b"[" * 1_001 + b"]" * 1_001, b'{"a":' * 5_000, b"[" * 100_000),
    *(b'{"card":1}{', b'{"card":1,"b":tru}', b'{"card"::1}', b"// a\n{}"),
]


_CALLS = [f"{function}(value, '$.card')" for function in ("mask_json", "hash_json", "drop_json")]


def _made_by_each(
    spark: SparkSession, documents: list[bytes | None]
) -> list[tuple[str, bytes | None, bytes | str | None]]:
    """Each of `_CALLS` with each document, and what came of it."""
    numbered = [(number, one) for number in range(len(_CALLS)) for one in documents]
    made = _each_made(spark, _CALLS, numbered)
    return [(_CALLS[number], one, got) for (number, one), got in zip(numbered, made, strict=True)]


def test_what_is_no_json_fails_and_never_passes(spark: SparkSession) -> None:
    made = _made_by_each(spark, list(_NO_JSON))
    assert [(call, one) for call, one, got in made if got != _FAILED] == []


def test_without_the_field_the_bytes_stay_and_a_tombstone_is_one(spark: SparkSession) -> None:
    deep = b"[" * 1_000 + b"]" * 1_000
    made = _made_by_each(spark, [*_UNCHANGED, deep, None])
    assert [(call, one, got) for call, one, got in made if got != one] == []


def test_mask_replaces_the_field_alone(spark: SparkSession) -> None:
    documents = [one for one, _ in _KEPT_BYTES]
    assert _made(spark, "mask_json(value, '$.card')", documents) == [one for _, one in _KEPT_BYTES]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("'none'", b'"none"'),
        ("''", b'""'),
        ("NULL", b"null"),
        ("concat('a\"b', chr(92), chr(10), 'é')", '"a\\"b\\\\\\u000aé"'.encode()),
    ],
)
def test_a_mask_of_ones_own(mask: str, said: bytes, spark: SparkSession) -> None:
    made = _made(spark, f"mask_json(value, '$.card', {mask})", [b'{"card":1}'])
    assert made == [b'{"card":' + said + b"}"]


def test_hash_is_sha256_of_salt_and_value(spark: SparkSession) -> None:
    def hashed(text: str) -> str:
        return hashlib.sha256(f"{_SALT}{text}".encode()).hexdigest()

    made = _made(
        spark,
        "hash_json(value, '$.card')",
        [
            b'{"card":"4111","a":1.50}',
            b'{"card":4111 }',
            b'{"card":"\\u00e9\\n\\/\\"\\\\"}',
            b'{"card":[1, 2]}',
            b'{"card":""}',
            b'{"card":null}',
        ],
    )
    assert made == [
        f'{{"card":"{hashed("4111")}","a":1.50}}'.encode(),
        f'{{"card":"{hashed("4111")}" }}'.encode(),
        '{{"card":"{}"}}'.format(hashed('é\n/"\\')).encode(),
        f'{{"card":"{hashed("[1, 2]")}"}}'.encode(),
        f'{{"card":"{hashed("")}"}}'.encode(),
        b'{"card":null}',
    ]


_PATHS = [
    ("$.card", '{"card":1}', '{"card":"***"}', "{}"),
    ("$.card", '{ "card" : 1 , "b" : 2 }', '{ "card" : "***" , "b" : 2 }', '{ "b" : 2 }'),
    ("$.card", '{"a":1, "card":2}', '{"a":1, "card":"***"}', '{"a":1}'),
    ("$.card", '{"a":1,"card":2,"b":3}', '{"a":1,"card":"***","b":3}', '{"a":1,"b":3}'),
    ("$.card", '{"card":1,"card":2}', '{"card":"***","card":"***"}', "{}"),
    ("$.card", '{"card":1,"a":2,"card":3,"card":4,"b":5}',
     '{"card":"***","a":2,"card":"***","card":"***","b":5}', '{"a":2,"b":5}'),
    ("$.a.card", '{"card":0,"a":{"card":1,"b":{"card":2}}}',
     '{"card":0,"a":{"card":"***","b":{"card":2}}}', '{"card":0,"a":{"b":{"card":2}}}'),
    ("$.a.card", '{"a":{"card":1},"a":{"x":0,"card":2}}',
     '{"a":{"card":"***"},"a":{"x":0,"card":"***"}}', '{"a":{},"a":{"x":0}}'),
    ("$.a.card", '{"a":[{"card":1}]}', '{"a":[{"card":1}]}', '{"a":[{"card":1}]}'),
    ("$.a[*].card", '{"a":[{"card":1},{},7,{"card":2}]}',
     '{"a":[{"card":"***"},{},7,{"card":"***"}]}', '{"a":[{},{},7,{}]}'),
    ("$[*].card", '[{"card":1},[{"card":2}]]', '[{"card":"***"},[{"card":2}]]',
     '[{},[{"card":2}]]'),
    ("$[*][*]", "[[1,2],[],3]", '[["***","***"],[],3]', "[[],[],3]"),
    ("$[1]", "[1, 2 , 3]", '[1, "***" , 3]', "[1 , 3]"),
    ("$.a[0]", '{"a":[1]}', '{"a":["***"]}', '{"a":[]}'),
    ("$.a[0]", '{"a":{"0":1}}', '{"a":{"0":1}}', '{"a":{"0":1}}'),
    ("$['a.b']['c d']", '{"a.b":{"c d":1}}', '{"a.b":{"c d":"***"}}', '{"a.b":{}}'),
    ("$.größe", '{"größe":1}', '{"größe":"***"}', "{}"),
    ("$.a-b_c", '{"a-b_c":1}', '{"a-b_c":"***"}', "{}"),
]  # fmt: skip


@pytest.mark.more
def test_paths(spark: SparkSession) -> None:
    sqls, documents, wanted = [], [], []
    for path, document, masked, dropped in _PATHS:
        quoted = path.replace("'", "\\'")
        for function, one in (("mask_json", masked), ("drop_json", dropped)):
            documents.append((len(sqls), document.encode()))
            sqls.append(f"{function}(value, '{quoted}')")
            wanted.append(one.encode())
    made = _each_made(spark, sqls, documents)
    assert list(zip(sqls, documents, made, strict=True)) == list(
        zip(sqls, documents, wanted, strict=True)
    )


def _document(dice: random.Random, depth: int, card: str | None) -> str:
    """JSON with odd blanks, numbers and escapes; fields ``card`` of the outer object as given."""
    blank = dice.choice(["", "", " ", "\n\t"])
    kind = dice.choice(["object", "array", *["plain"] * 3]) if depth else "plain"
    if card is not None:
        kind = "object"
    if kind == "plain":
        plain = ["1", "-0", "1.50", "1e400", "1E-7", "99999999999999999999999", "true", "null"]
        texts = ['"card"', '"\\u0063ard"', '"a\\"b"', '"{[,"', '"é€😀"', '"\\\\"', '""']
        return blank + dice.choice([*plain, *texts]) + blank
    members = []
    for _ in range(dice.randrange(5)):
        inner = _document(dice, depth - 1, None)
        key = dice.choice(['"a"', '"Card"', '"c\\u0061rds"', '"card\\u0000"', '""'])
        members.append(f"{blank}{key}{blank}:{inner}" if kind == "object" else inner)
    if card is not None:
        for _ in range(dice.randrange(3)):
            value = card or _document(dice, 2, None).strip()
            key = dice.choice(['"card"', '"c\\u0061rd"'])
            members.insert(dice.randrange(len(members) + 1), f"{blank}{key}:{blank}{value}{blank}")
    marks = "{}" if kind == "object" else "[]"
    return f"{blank}{marks[0]}{(blank + ',').join(members)}{blank}{marks[1]}{blank}"


def test_random_documents_differ_in_the_field_alone(spark: SparkSession) -> None:
    """The same dice give the document, and what must be made of it."""
    seeds = range(400)
    documents = [_document(random.Random(seed), 3, "") for seed in seeds]
    masked = _made(spark, "mask_json(value, '$.card')", [one.encode() for one in documents])
    dropped = _made(spark, "drop_json(value, '$.card')", [one.encode() for one in documents])

    def parsed(text: Any) -> Any:
        return json.loads(text, object_pairs_hook=list, parse_float=str, parse_int=str)

    with_field = 0
    for one, mask, drop in zip(documents, masked, dropped, strict=True):
        fields = parsed(one)
        with_field += any(key == "card" for key, _ in fields)
        assert parsed(mask) == [(key, "***" if key == "card" else it) for key, it in fields], one
        assert parsed(drop) == [(key, it) for key, it in fields if key != "card"], one
        if not any(key == "card" for key, _ in fields):
            assert (mask, drop) == (one.encode(), one.encode())
    assert 100 < with_field < 400
    again = [_document(random.Random(seed), 3, '"***"') for seed in range(400, 500)]
    assert _made(spark, "mask_json(value, '$.card')", [one.encode() for one in again]) == [
        one.encode() for one in again
    ]


def test_calls_within_calls_and_text(spark: SparkSession) -> None:
    sql = "Mask_JSON(drop_json(CAST(value AS STRING), '$.a'), '$.b')"
    assert _made(spark, sql, [b'{"a":1,"b":2}', None]) == [b'{"b":"***"}', None]
    # Text that is no UTF-8 is no JSON as a string either, and keeps its bytes until then.
    no_text, text = b'{"b":1,"a":"\xff"}', '{"b":1,"c":"é"}'.encode()
    assert _made(spark, sql, [no_text, text]) == [_FAILED, '{"b":"***","c":"é"}'.encode()]


def test_header_is_the_last_one_of_that_name(spark: SparkSession) -> None:
    plan = TransformPlan(spark, _flow(where="header('tenant') = 'blue'"))
    assert plan.planned[0].uses == {"headers"}
    headers = [
        [("tenant", b"red"), ("other", b"x"), ("tenant", b"blue")],
        [("tenant", b"blue"), ("tenant", b"red")],
        [("tenant", b"blue"), ("tenant", None)],
        [("Tenant", b"blue")],
        [],
        None,
    ]
    rows = [(None, None, 0, at, one) for at, one in enumerate(headers)]
    schema = (
        f"__head string, __records binary, __transform int, __at int, headers {COLUMNS['headers']}"
    )
    results = plan.transformed(plan.session.createDataFrame(rows, schema)).collect()
    assert [one["t0"]["record"] is not None for one in results] == [True, *[False] * 5]


def test_a_header_that_is_no_text_keeps_its_bytes(spark: SparkSession) -> None:
    plan = TransformPlan(spark, _flow("header('id') AS key"))
    schema = (
        f"__head string, __records binary, __transform int, __at int, headers {COLUMNS['headers']}"
    )
    rows = [(None, None, 0, 0, [("id", b"\xff\x00\xc3")])]
    (found,) = plan.transformed(plan.session.createDataFrame(rows, schema)).collect()
    assert bytes(found["t0"]["record"]["key"]) == b"\xff\x00\xc3"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("mask_json(value)", "mask_json: it takes a value and a path, and may take a mask"),
        ("drop_json(value, '$.a', 'b')", "drop_json: it takes a value and a path"),
        ("mask_json(offset, '$.a')", "mask_json: its first argument is of type bigint"),
        ("mask_json(value, 'card')", "its path 'card' leads to no field; write it as in '$.card'"),
        ("mask_json(value, '$')", "its path '$' leads to no field"),
        ("mask_json(value, '$.')", "leads to no field"),
        ("mask_json(value, '$..card')", "leads to no field"),
        ("mask_json(value, '$.a[x]')", "leads to no field"),
        ("mask_json(value, '$.a[')", "leads to no field"),
        ("mask_json(value, '$.a*')", "leads to no field"),
        ("mask_json(value, NULL)", "its path is NULL"),
        ("mask_json(value, topic)", "its path must be a text in quotes, the same for all records"),
        ("mask_json(value, '$.a', 1)", "its mask is of type int, not string"),
        ("mask_json(value, '$.a', topic)", "its mask must be a text in quotes"),
        ("header()", "header: it takes the name of a header"),
        ("header(1)", "header: its name is of type int, not string"),
        ("mask_jason(value, '$.a')", "`mask_jason`"),
    ],
)
def test_bad_calls_are_refused_with_key_and_line(sql: str, said: str, spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as caught:
        TransformPlan(spark, _flow(f"{sql} AS value"))
    assert str(caught.value).startswith("file:8: key.select: the transform clean cannot be used: ")
    assert said in str(caught.value)


def test_hash_without_a_salt_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"file:8: .*hash_json needs a salt") as caught:
        TransformPlan(spark, _flow("hash_json(value, '$.a') AS value", salt=""))
    assert "Set A->A.sparkmirror.hash.salt" in str(caught.value.do)


def test_no_plan_shows_the_salt(spark: SparkSession) -> None:
    plan = TransformPlan(spark, _flow("hash_json(value, '$.card') AS value"))
    schema = f"{HIDDEN}, value binary"
    frame = plan.transformed(plan.session.createDataFrame([], schema))
    execution: Any = frame._jdf.queryExecution()
    shown = execution.toString() + execution.debug().codegenToSeq().toString()
    assert "hash_json[$.card](value" in shown
    assert _SALT not in shown
    assert _SALT not in repr(_flow())


def test_the_plan_stays_one_projection(spark: SparkSession) -> None:
    plan = TransformPlan(spark, _flow("mask_json(value, '$.card') AS value", "header('a') IS NULL"))
    schema = f"{HIDDEN}, value binary, headers {COLUMNS['headers']}"
    frame = plan.transformed(plan.session.createDataFrame([], schema).limit(0))
    told = frame._jdf.queryExecution().optimizedPlan().toString()
    assert "Python" not in told
    assert told.count("Project") <= 1


def test_sessions_of_flows_that_call_none_have_none(spark: SparkSession) -> None:
    session = spark.newSession()
    plain = _flow(where="offset > 1")
    register_functions(session, plain, Tables(session, plain).java)
    assert not session.catalog.functionExists("mask_json")
    calls = _flow(where="Header ('a') IS NULL")
    register_functions(session, calls, Tables(session, calls).java)
    assert session.catalog.functionExists("mask_json")
