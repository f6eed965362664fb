"""Avro as JSON and back, against Avro's own library."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.registries import Avro, Schema, SchemaRegistry, serving, wire
from tests.unit.data.transform.registry.sql import FAILED, Sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BACK = "encode_registry(decode_registry(value), value)"


@pytest.fixture(scope="module")
def registry() -> SchemaRegistry:
    return SchemaRegistry()


@pytest.fixture(scope="module")
def sql(spark: SparkSession, registry: SchemaRegistry) -> Iterator[Sql]:
    with serving(registry) as url:
        yield Sql(spark, url)


@pytest.fixture(scope="module")
def avro(spark: SparkSession) -> Avro:
    return Avro(spark.sparkContext._jvm)


def _record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields)}


def _field(name: str, kind: Schema, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def _logical(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


def _fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


_ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
_NODE = _record(_field("n", "int"), _field("next", ["null", "Node"]), name="Node")
_DECIMAL = _logical("bytes", "decimal", precision=6, scale=2)

# Schema, the value in Avro's own JSON, and in ours.
_TYPES: list[tuple[Schema, str, str]] = [
    ('"null"', "null", "null"),
    ('"boolean"', "true", "true"),
    ('"int"', "-2147483648", "-2147483648"),
    ('"long"', "9223372036854775807", "9223372036854775807"),
    ('"float"', "1.5", "1.5"),
    ('"double"', "-1.0E300", "-1.0E300"),
    ('"string"', r'"a\"b\\ü€😀\n\u0001"', r'"a\"b\\ü€😀\u000a\u0001"'),
    ('"bytes"', r'"a\u0000\u00ff\""', r'"a\u0000ÿ\""'),
    (_fixed(3), r'"ab\u00ff"', '"abÿ"'),
    (_ENUM, '"GREEN"', '"GREEN"'),
    ({"type": "array", "items": "int"}, "[1,2,3]", "[1,2,3]"),
    ({"type": "array", "items": "null"}, "[null,null]", "[null,null]"),
    ({"type": "array", "items": "int"}, "[]", "[]"),
    ({"type": "map", "values": "long"}, '{"a\\"":1}', '{"a\\"":1}'),
    ({"type": "map", "values": "long"}, "{}", "{}"),
    (_record(), "{}", "{}"),
    (_record(_field("a", "int"), _field("b", "string")), '{"a":1,"b":"x"}', '{"a":1,"b":"x"}'),
    (["null", "string"], "null", "null"),
    (["null", "string"], '{"string":"x"}', '"x"'),
    (["int", "null"], '{"int":7}', "7"),
    (["string"], '{"string":"x"}', '"x"'),
    (["null", "string", "int"], "null", "null"),
    (["null", "string", "int"], '{"int":7}', '{"int":7}'),
    (["string", _ENUM], '{"Colour":"RED"}', '{"Colour":"RED"}'),
    (["null", _record(_field("a", "int"))], '{"shop.Order":{"a":1}}', '{"a":1}'),
    (["string", _record(_field("a", "int"))], '{"shop.Order":{"a":1}}', '{"shop.Order":{"a":1}}'),
    (_NODE, '{"n":1,"next":{"shop.Node":{"n":2,"next":null}}}',
     '{"n":1,"next":{"n":2,"next":null}}'),
    (_DECIMAL, r'"\u04d2"', "12.34"),
    (_logical("bytes", "decimal", precision=38, scale=0), r'"\u0000\u0080"', "128"),
    (_fixed(4, logicalType="decimal", precision=6, scale=2), r'"\u00ff\u00ff\u00ff\u009c"',
     "-1.00"),
    (_logical("int", "date"), "-1", '"1969-12-31"'),
    (_logical("int", "date"), "2147483647", '"+5881580-07-11"'),
    (_logical("int", "time-millis"), "86399999", '"23:59:59.999"'),
    (_logical("int", "time-millis"), "0", '"00:00:00"'),
    (_logical("int", "time-millis"), "86400000", "86400000"),
    (_logical("int", "time-millis"), "-1", "-1"),
    (_logical("long", "time-micros"), "60000001", '"00:01:00.000001"'),
    (_logical("long", "timestamp-millis"), "1000", '"1970-01-01T00:00:01Z"'),
    (_logical("long", "timestamp-millis"), "-1", '"1969-12-31T23:59:59.999Z"'),
    (_logical("long", "timestamp-millis"), "-9223372036854775808",
     '"-292275055-05-16T16:47:04.192Z"'),
    (_logical("long", "timestamp-micros"), "1", '"1970-01-01T00:00:00.000001Z"'),
    (_logical("long", "timestamp-nanos"), "1", '"1970-01-01T00:00:00.000000001Z"'),
    (_logical("long", "local-timestamp-millis"), "0", '"1970-01-01T00:00:00"'),
    (_logical("long", "local-timestamp-micros"), "1500000", '"1970-01-01T00:00:01.5"'),
    (_logical("string", "uuid"), '"any text"', '"any text"'),
    (_fixed(16, logicalType="uuid"), '"' + r"\u0001" * 16 + '"',
     '"01010101-0101-0101-0101-010101010101"'),
    (_fixed(12, logicalType="duration"), '"' + "a" * 12 + '"', '"' + "a" * 12 + '"'),
    (["null", _DECIMAL], r'{"bytes":"\u04d2"}', "12.34"),
    # Its only digit stands behind two thousand million zeros.
    (_logical("bytes", "decimal", precision=2_000_000_000, scale=2_000_000_000), '"a"', '"a"'),
]  # fmt: skip


def _all_bytes(text: str) -> str:
    """Two bytes were written as one character of their number, to be read more easily."""
    return text.replace(r"\u04d2", r"\u0004\u00d2")


def test_each_type_as_json_and_back(sql: Sql, registry: SchemaRegistry, avro: Avro) -> None:
    """The bytes that come back are those that Avro's own library wrote."""
    written = [
        wire(registry.add(f"type-{number}", schema), avro.written(schema, _all_bytes(theirs)))
        for number, (schema, theirs, _) in enumerate(_TYPES)
    ]
    shown = sql.of("decode_registry(value)", [*written, None])
    assert shown == [*(ours.encode() for _, _, ours in _TYPES), None]
    for one in shown[:-1]:
        json.loads(one or b"")
    assert sql.of(_BACK, [*written, None]) == [*written, None]


def test_numbers_that_json_does_not_have(sql: Sql, registry: SchemaRegistry) -> None:
    single, double = registry.add("float", '"float"'), registry.add("double", '"double"')
    written = [wire(single, struct.pack("<f", float(one))) for one in ("nan", "inf", "-0.0")]
    written += [wire(double, struct.pack("<d", float(one))) for one in ("nan", "-inf", "-0.0")]
    assert sql.of("decode_registry(value)", [*written]) == [
        *(b'"NaN"', b'"Infinity"', b"-0.0"),
        *(b'"NaN"', b'"-Infinity"', b"-0.0"),
    ]
    assert sql.of(_BACK, [*written]) == written


_ANY = _record(
    _field("id", "long"),
    _field("name", ["null", "string"], default=None),
    _field("price", "double"),
    _field("rate", "float"),
    _field("raw", "bytes"),
    _field("key", _fixed(5)),
    _field("colour", _ENUM),
    _field("many", {"type": "array", "items": ["null", "int", "string"]}),
    _field("tags", {"type": "map", "values": {"type": "array", "items": "boolean"}}),
    _field("tree", _record(_field("n", "int"), _field("more", {"type": "array", "items": "Tree"}),
                           name="Tree")),
)  # fmt: skip


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.more)])
def test_random_records_keep_their_bytes(
    sql: Sql, registry: SchemaRegistry, avro: Avro, count: int
) -> None:
    number = registry.add("any", _ANY)
    written: list[bytes | None] = [wire(number, one) for one in avro.random(_ANY, count, 7)]
    assert sql.of(_BACK, written) == written
    for one in sql.of("decode_registry(value)", written):
        assert isinstance(json.loads(one or b""), dict)


def test_a_masked_field_and_its_schema(sql: Sql, registry: SchemaRegistry, avro: Avro) -> None:
    schema = _record(
        _field("id", "int"),
        _field("card", ["null", "string"]),
        _field("pin", "int"),
        _field("price", _DECIMAL),
    )
    number = registry.add("masked", schema)
    theirs = _all_bytes('{"id":1,"card":{"string":"4111"},"pin":1234,"price":"\\u04d2"}')
    value = wire(number, avro.written(schema, theirs))
    masked = "mask_json(mask_json(decode_registry(value), '$.card'), '$.pin', '0')"
    ways = ("value", f"{number}", f"{number}L", "'masked'")
    calls = ", ".join(f"encode_registry({masked}, {way})" for way in ways)
    (four,) = sql.of(f"concat({calls})", [value])
    assert isinstance(four, bytes)
    got = four[: len(four) // len(ways)]
    assert four == got * len(ways)
    assert got[:5] == value[:5]
    assert json.loads(avro.read(schema, got[5:])) == {
        **json.loads(theirs),
        "card": {"string": "***"},
        "pin": 0,
    }


def test_fields_that_are_dropped_get_their_default(
    sql: Sql, registry: SchemaRegistry, avro: Avro
) -> None:
    inner = _record(_field("x", "int", default=3), name="Inner")
    schema = _record(
        _field("id", "int"),
        _field("card", "string", default="none"),
        _field("inner", inner, default={}),
        _field("on", ["null", "boolean"], default=None),
        _field("wrong", "int", default="no number"),
    )
    number = registry.add("defaults", schema)
    given: list[bytes | None] = [b'{"id":1,"wrong":2}', b'{"id":1}', b'{"wrong":2}']
    got = sql.of(f"encode_registry(value, {number})", given)
    assert got[1:] == [FAILED, FAILED]
    valid = {**schema, "fields": [*schema["fields"][:4], _field("wrong", "int")]}
    assert isinstance(got[0], bytes)
    assert json.loads(avro.read(valid, got[0][5:])) == {
        **{"id": 1, "card": "none", "inner": {"x": 3}, "on": None, "wrong": 2}
    }


_WRONG_JSON: list[tuple[Schema, list[str]]] = [
    ('"null"', ["0"]),
    ('"boolean"', ["1", '"yes"', "null"]),
    ('"int"', ["2147483648", "1.5", '"x"', "true", "1e999999999", "[1]", "null", '""']),
    ('"long"', ["9223372036854775808", "1e400", '"1e-5"']),
    ('"float"', ["1e39", '"inf"', "null"]),
    ('"double"', ["1e309", "-1e400", '"x"']),
    ('"string"', ["1", "null", r'"\ud800"', '"a', '"a" "b"', "'a'", ""]),
    ('"bytes"', ['"€"', "1"]),
    (_fixed(2), ['"a"', '"abc"']),
    (_ENUM, ['"BLUE"', "0", "null"]),
    ({"type": "array", "items": "int"}, ["{}", "[1,]", "[null]", "[" * 100_000 + "]" * 100_000]),
    ({"type": "map", "values": "int"}, ["[]", '{"a":1,"a":2}', '{"a":"x"}']),
    (_record(_field("a", "int")), ["{}", '{"a":1,"b":2}', "[]", '{"A":1}', "null"]),
    (["null", "int"], ['{"int":7}', '"x"']),
    (["string", "int"], ["7", "null", '{"int":7,"string":"x"}', '{"long":7}', "{}"]),
    (_DECIMAL, ["1.234", "10000", '"x"', "1e999999999", "1e-999999999", "null"]),
    (_fixed(2, logicalType="decimal", precision=4, scale=0), ["10000", "0.5"]),
    (_logical("int", "date"), ['"2026-02-30"', '"tomorrow"', '"+999999999-01-01"']),
    (_logical("int", "time-millis"), ['"24:00:00"', '"10:00:00.0001"']),
    (_logical("long", "timestamp-micros"), ['"2026-01-01"', '"+1000000-01-01T00:00:00Z"']),
    (_logical("long", "local-timestamp-millis"), ['"2026-01-01T00:00:00Z"']),
    (_fixed(16, logicalType="uuid"), ['"1-1-1-1-1"', '"x"']),
]  # fmt: skip


@pytest.mark.more
def test_json_that_does_not_fit_fails(sql: Sql, registry: SchemaRegistry) -> None:
    for number, (schema, wrong) in enumerate(_WRONG_JSON):
        found = registry.add(f"wrong-{number}", schema)
        got = sql.of(f"encode_registry(value, {found})", [one.encode() for one in wrong])
        fits = [one for one, made in zip(wrong, got, strict=True) if made != FAILED]
        assert not fits, schema


def test_texts_that_read_like_numbers_are_numbers(sql: Sql, registry: SchemaRegistry) -> None:
    expected: list[tuple[Schema, bytes, bytes]] = [
        ('"int"', b'"-1"', b"\x01"),
        ('"long"', b'"1e2"', b"\xc8\x01"),
        ('"boolean"', b'"true"', b"\x01"),
        ('"double"', b'"1.5"', struct.pack("<d", 1.5)),
        (_DECIMAL, b'"12.3"', b"\x04\x04\xce"),
        (_logical("int", "date"), b"0", b"\x00"),
        (_logical("int", "date"), b'"1"', b"\x02"),
    ]
    ids = [registry.add(f"text-{n}", schema) for n, (schema, _, _) in enumerate(expected)]
    # Each text stands behind the head of a value, which names the schema.
    values = [wire(one, text) for one, (_, text, _) in zip(ids, expected, strict=True)]
    made = sql.of("encode_registry(substring(value, 6), value)", [*values])
    wanted = [wire(one, payload) for one, (_, _, payload) in zip(ids, expected, strict=True)]
    assert made == wanted


def _number(value: int) -> bytes:
    """Avro's number of variable length."""
    rest, made = value << 1 ^ value >> 63, bytearray()
    while rest & ~0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*made, rest])


_NULLS = {"type": "array", "items": "null"}
_LONGEST = 2**63 - 1
_BROKEN: list[tuple[Schema, list[bytes]]] = [
    ('"boolean"', [b"", b"\x02", b"\x00\x00"]),
    ('"int"', [b"", b"\x80", _number(2**31), b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02"]),
    ('"double"', [b"\x00" * 7, b"\x00" * 9]),
    ('"string"', [b"\x04a", _number(-1), _number(_LONGEST), b"\x02\xff", b"\x02\xc3",
                  b"\x04\xc0\xaf", b"\x06\xed\xa0\x80"]),
    ('"bytes"', [_number(2**31 - 1) + b"x", _number(2**40)]),
    (_fixed(3), [b"ab"]),
    (_ENUM, [_number(2), _number(-1)]),
    (["null", "int"], [_number(2), _number(-1), b"\x02"]),
    # Blocks that announce more than there is, or elements that take no bytes.
    (_NULLS, [_number(_LONGEST), _number(2**40), _number(-(2**63)) + b"\x00",
              _number(30_000_000) + b"\x00"]),
    ({"type": "array", "items": _record(name="Nothing")}, [_number(2**40)]),
    ({"type": "map", "values": "int"}, [_number(2**40) + b"\x02a\x02"]),
    ({"type": "array", "items": "int"}, [b"\x02\x02", b"\x02\x02\x04\x00", b"\x02\x02\x00\x00"]),
    (_NODE, [b"\x00\x02" * 301 + b"\x00\x00", b"\x00\x02" * 500_000]),
    (_DECIMAL, [b"\x00", _number(100_000) + b"\x7f" * 100_000]),
]  # fmt: skip


def test_broken_and_hostile_records_fail(sql: Sql, registry: SchemaRegistry) -> None:
    # A good one behind each: it is decoded, whatever the one before it was.
    good = wire(registry.add("good", '"int"'), b"\x02")
    broken, values = [], list[bytes | None]()
    for number, (schema, payloads) in enumerate(_BROKEN):
        found = registry.add(f"broken-{number}", schema)
        for one in payloads:
            broken.append((schema, one[:20]))
            values += [wire(found, one), good]
    got = sql.of("decode_registry(value)", values)
    assert got[1::2] == [b"1"] * len(broken)
    assert not [one for one, made in zip(broken, got[::2], strict=True) if made != FAILED]


def test_blocks_with_their_size(sql: Sql, registry: SchemaRegistry) -> None:
    """Other languages write several blocks, and those with their size in front."""
    found = registry.add("blocks", {"type": "array", "items": "int"})
    payload = _number(-2) + _number(2) + b"\x02\x04" + _number(1) + b"\x06" + b"\x00"
    assert sql.of("decode_registry(value)", [wire(found, payload)]) == [b"[1,2,3]"]


def test_as_many_levels_as_are_allowed(sql: Sql, registry: SchemaRegistry) -> None:
    found = registry.add("deep", _NODE)
    value = wire(found, b"\x00\x02" * 299 + b"\x00\x00")
    assert sql.of(_BACK, [value]) == [value]


def test_references_to_other_schemas(sql: Sql, registry: SchemaRegistry, avro: Avro) -> None:
    """A diamond: both fields' types name a third one."""
    registry.add("id", _record(_field("n", "int"), name="Id"))
    of_id = (("shop.Id", "id", 1),)
    registry.add("buyer", _record(_field("id", "shop.Id"), name="Buyer"), references=of_id)
    registry.add("shop item", _record(_field("id", "shop.Id"), name="Item"), references=of_id)
    schema = _record(_field("buyer", "shop.Buyer"), _field("item", "Item"))
    both = (("shop.Buyer", "buyer", 1), ("shop.Item", "shop item", 1))
    value = wire(registry.add("referring", schema, references=both), b"\x02\x04")
    shown = b'{"buyer":{"id":{"n":1}},"item":{"id":{"n":2}}}'
    assert sql.of("decode_registry(value)", [value]) == [shown]
    assert sql.of(_BACK, [value]) == [value]


def test_names_that_java_does_not_allow(sql: Sql, registry: SchemaRegistry) -> None:
    found = registry.add("names", _record(_field("card-no", "int"), name="an-order"))
    value = wire(found, b"\x02")
    assert sql.of("decode_registry(value)", [value]) == [b'{"card-no":1}']
    assert sql.of(_BACK, [value]) == [value]
