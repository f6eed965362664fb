"""Protobuf as JSON and back: bytes made by hand, and JSON as Protobuf's documentation has it."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sparkmirror.data.transform.spark_errors import reason_of, table_of
from sparkmirror.errors import ConfigError
from sparkmirror.records.records import Record
from tests.registries import SchemaRegistry, serving, varint, wire
from tests.unit.data.transform.registry.sql import FAILED, Sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DECODE = "decode_registry(value)"
_BACK = f"encode_registry({_DECODE}, value)"
_FIRST = b"\x00"


@pytest.fixture(scope="module")
def registry() -> SchemaRegistry:
    return SchemaRegistry()


@pytest.fixture(scope="module")
def sql(spark: SparkSession, registry: SchemaRegistry) -> Iterator[Sql]:
    with serving(registry) as url:
        yield Sql(spark, url)


def _int(number: int, value: int) -> bytes:
    """A field whose value is of variable length."""
    return varint(number << 3) + varint(value % 2**64)


def _bytes(number: int, value: bytes) -> bytes:
    """A field whose value has its length in front: texts, bytes, messages, packed numbers."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def _fixed(number: int, layout: str, value: float) -> bytes:
    made = struct.pack(layout, value)
    return varint(number << 3 | (1 if len(made) == 8 else 5)) + made


def _reason(sql: Sql, select: str, value: bytes) -> str:
    record = Record(7, 1_000, None, value, ())
    return reason_of(sql.plan(f"{select} AS value"), 0, table_of("orders", 0, [record]))


_ALL = """
// What a registry answers: comments, options and blanks as somebody wrote them.
syntax = "proto3";
package shop.orders;  /* a
package */
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/any.proto";
import "google/protobuf/empty.proto";
import "confluent/meta.proto";
option java_package = "com.shop" ".orders";
option (confluent.file_meta) = { doc: "a } in a text", params: [ { key: "a" } ] };
;
message Order {
  option (confluent.message_meta).doc = "an order";
  reserved 90, 92 to 95, 1000 to max;
  reserved "old", "older";
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6;
  sint32 s32 = 7; sint64 s64 = 8; fixed32 x32 = 9; fixed64 x64 = 10; sfixed32 y32 = 11;
  sfixed64 y64 = 12; bool is_paid = 13; string name = 14 [json_name = "label", deprecated=true];
  bytes raw = 0xF;
  optional int32 maybe = 16;
  repeated int32 packed_numbers = 17;
  repeated sint64 plain = 18 [packed = false, (confluent.field_meta) = { tags: ["x", "]"] }];
  repeated string texts = 19;
  Colour colour = 20;
  repeated .shop.orders.Order.Colour colours = 21;
  map<string, Item> items = 22;
  map<int64, string> by_number = 23;
  map<bool, Colour> by_bool = 24;
  Item item = 25;
  repeated orders.Order.Item more = 26;
  oneof payment { option (my).x = 1; string card = 27; Item voucher = 28; }
  google.protobuf.Timestamp at = 29;
  google.protobuf.Duration took = 30;
  google.protobuf.StringValue wrapped = 31;
  google.protobuf.Int64Value wrapped_long = 32;
  google.protobuf.Struct any_json = 33;
  google.protobuf.FieldMask mask = 34;
  google.protobuf.Any any = 35;
  google.protobuf.Empty empty = 36;
  Order parent = 37; repeated Order orders = 38;
  message Item {
    enum Kind { NONE = 0; BOOK = 1; }
    int32 count = 1; Kind kind = 2;
    message Part { string x = 1; }
  }
  enum Colour { option allow_alias = true; RED = 0; GREEN = 0x2 [deprecated = true]; LAST = 2;
    BLUE = -1; reserved 3 to 5; }
}
message Other { string text = 1; }
service Orders { rpc Get (Order) returns (stream Order) { option (x) = { get: "/a" }; } }
"""
_ITEM = b"\x08\x05\x10\x01"

# A field of the message Order, as bytes and in JSON.
_FIELDS: list[tuple[bytes, str, object]] = [
    (_fixed(1, "<d", -1e300), "d", -1e300),
    (_fixed(1, "<d", float("nan")), "d", "NaN"),
    (_fixed(2, "<f", 1.5), "f", 1.5),
    (_fixed(2, "<f", float("-inf")), "f", "-Infinity"),
    (_int(3, -(2**31)), "i32", -(2**31)),
    (_int(4, 2**63 - 1), "i64", str(2**63 - 1)),
    (_int(5, 2**32 - 1), "u32", 2**32 - 1),
    (_int(6, 2**64 - 1), "u64", str(2**64 - 1)),
    (_int(7, 1), "s32", -1),
    (_int(8, 2**64 - 1), "s64", str(-(2**63))),
    (_fixed(9, "<I", 7), "x32", 7),
    (_fixed(10, "<Q", 7), "x64", "7"),
    (_fixed(11, "<i", -7), "y32", -7),
    (_fixed(12, "<q", -7), "y64", "-7"),
    (_int(13, 1), "isPaid", True),
    (_bytes(14, 'a"ü€😀\n'.encode()), "label", 'a"ü€😀\n'),
    (_bytes(15, b"\x00\xff"), "raw", "AP8="),
    (_int(16, 0), "maybe", 0),
    (_bytes(17, b"\x01\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "packedNumbers", [1, 2, -1]),
    (_int(18, 1) + _int(18, 2), "plain", ["-1", "1"]),
    (_bytes(19, b"a") + _bytes(19, b""), "texts", ["a", ""]),
    (_int(20, 2), "colour", "GREEN"),
    (_int(20, 77), "colour", 77),
    (_bytes(21, varint(2**64 - 1) + b"\x00"), "colours", ["BLUE", "RED"]),
    (_bytes(22, _bytes(1, b"k") + _bytes(2, _ITEM)), "items", {"k": {"count": 5, "kind": "BOOK"}}),
    (_bytes(23, _int(1, -1) + _bytes(2, b"v")), "byNumber", {"-1": "v"}),
    (_bytes(24, _int(1, 1) + _int(2, 2)), "byBool", {"true": "GREEN"}),
    (_bytes(25, _ITEM), "item", {"count": 5, "kind": "BOOK"}),
    (_bytes(25, b""), "item", {"count": 0, "kind": "NONE"}),
    (_bytes(26, _ITEM) + _bytes(26, b""), "more",
     [{"count": 5, "kind": "BOOK"}, {"count": 0, "kind": "NONE"}]),
    (_bytes(27, b""), "card", ""),
    (_bytes(28, _ITEM), "voucher", {"count": 5, "kind": "BOOK"}),
    (_bytes(29, _int(1, 1) + _int(2, 500_000_000)), "at", "1970-01-01T00:00:01.500Z"),
    (_bytes(30, _int(1, -1) + _int(2, -5)), "took", "-1.000000005s"),
    (_bytes(31, _bytes(1, b"x")), "wrapped", "x"),
    (_bytes(32, b""), "wrappedLong", "0"),
    (_bytes(33, _bytes(1, _bytes(1, b"a") + _bytes(2, _int(1, 0)))), "anyJson", {"a": None}),
    (_bytes(34, _bytes(1, b"a.b_c") + _bytes(1, b"d")), "mask", "a.bC,d"),
    (_bytes(35, _bytes(1, b"type.googleapis.com/shop.orders.Other") + _bytes(2, _bytes(1, b"x"))),
     "any", {"@type": "type.googleapis.com/shop.orders.Other", "text": "x"}),
    (_bytes(36, b""), "empty", {}),
]  # fmt: skip


def test_each_type_as_json_and_back(sql: Sql, registry: SchemaRegistry) -> None:
    """Zeros are shown, and what may be absent is not."""
    number = registry.add("all", _ALL, "PROTOBUF")
    written: list[bytes | None] = [wire(number, _FIRST + one) for one, _, _ in _FIELDS]
    nothing = {
        **dict.fromkeys(("d", "f"), 0.0),
        **dict.fromkeys(("i32", "u32", "s32", "x32", "y32"), 0),
        **dict.fromkeys(("i64", "u64", "s64", "x64", "y64"), "0"),
        **{"isPaid": False, "label": "", "raw": "", "colour": "RED"},
        **{one: [] for one in ("packedNumbers", "plain", "texts", "colours", "more", "orders")},
        **{one: {} for one in ("items", "byNumber", "byBool")},
    }
    shown = sql.of(_DECODE, [wire(number, _FIRST), *written, None])
    assert shown[-1] is None
    read = [json.loads(one or b"") for one in shown[:-1]]
    assert read == [nothing, *({**nothing, name: value} for _, name, value in _FIELDS)]
    assert sql.of(_BACK, [wire(number, _FIRST), *written, None]) == [
        wire(number, _FIRST),
        *written,
        None,
    ]
    together = wire(number, _FIRST + b"".join(one for one, name, _ in _FIELDS if name != "card"))
    assert json.loads(sql.of(_DECODE, [together])[0] or b"")["voucher"]["count"] == 5


def test_which_message_a_value_has(sql: Sql, registry: SchemaRegistry) -> None:
    """The entries of maps have no numbers, wherever they stand."""
    number = registry.add(
        "many",
        """syntax = "proto3";
        message A { map<string, string> m = 1; message B { int32 b = 1; message C { int32 c = 1; } }
          enum E { X = 0; } message D { int32 d = 1; } }
        message F { int32 f = 1; }""",
        "PROTOBUF",
    )
    expected = {
        b"\x00": b'{"m":{}}',
        b"\x02\x02\x08\x07": b'{"f":7}',
        b"\x04\x00\x00\x08\x07": b'{"b":7}',
        b"\x06\x00\x00\x00\x08\x07": b'{"c":7}',
        b"\x04\x00\x02\x08\x07": b'{"d":7}',
    }
    given: list[bytes | None] = [wire(number, one) for one in expected]
    assert sql.of(_DECODE, given) == list(expected.values())
    assert sql.of(_BACK, given) == given
    # The long form of the first one is read as well.
    assert sql.of(_BACK, [wire(number, b"\x02\x00")]) == [wire(number, b"\x00")]
    broken = (b"", b"\x02", b"\x02\x04", b"\x01", b"\x02\x01", b"\x04\x00\x04", b"\x80",
              b"\xff\xff\xff\xff\xff\x01", b"\x06\x02\x00\x00")  # fmt: skip
    got = sql.of(_DECODE, [wire(number, one) for one in broken])
    assert got == [FAILED] * len(broken)
    text = b'{"c":7}'
    made = sql.of("encode_registry(value, 'many', 'A.B.C')", [text])
    assert made == [wire(number, b"\x06\x00\x00\x00\x08\x07")]
    assert sql.of("encode_registry(value, 'many')", [b'{"m":{"a":"b"}}']) == [
        wire(number, _FIRST + _bytes(1, _bytes(1, b"a") + _bytes(2, b"b")))
    ]
    assert sql.of(f"encode_registry(value, {number}, 'F')", [b'{"f":7}', None]) == [
        wire(number, b"\x02\x02\x08\x07"),
        None,
    ]


def test_names_with_a_package(sql: Sql, registry: SchemaRegistry) -> None:
    text = 'syntax="proto3";package a.b;message C{}message D{int32 x=1;}'
    number = registry.add("package", text, "PROTOBUF")
    for name in ("D", "a.b.D"):
        made = sql.of(f"encode_registry(value, 'package', '{name}')", [b'{"x":1}'])
        assert made == [wire(number, b"\x02\x02\x08\x01")]


_OLD = """
syntax = "proto2";
message Old {
  required string name = 1 [default = "x\\"y"];
  optional int32 count = 2 [default = -5];
  repeated int32 many = 3;
  repeated int32 packed = 4 [packed=true];
  optional Kind kind = 5;
  optional group Part = 6 { optional int32 a = 1; }
  extensions 100 to 199;
  enum Kind { ONE = 1; }
}
extend Old { optional string more = 100; }
"""


def test_proto2(sql: Sql, registry: SchemaRegistry) -> None:
    number = registry.add("old", _OLD, "PROTOBUF")
    value = (
        _bytes(1, "\ufffd".encode()) + _int(3, 1) + _int(3, 2) + _bytes(4, b"\x01\x02")
        + _int(5, 1) + b"\x33\x08\x07\x34"
    )  # fmt: skip
    given = wire(number, _FIRST + value)
    shown = {"name": "\ufffd", "many": [1, 2], "packed": [1, 2], "kind": "ONE", "part": {"a": 7}}
    assert json.loads(sql.of(_DECODE, [given])[0] or b"") == shown
    assert sql.of(_BACK, [given]) == [given]
    without = registry.add("older", _OLD.replace('syntax = "proto2";', ""), "PROTOBUF")
    assert sql.of(_BACK, [wire(without, _FIRST + value)]) == [wire(without, _FIRST + value)]
    name = _bytes(1, b"x")
    lost = [
        _int(2, 1),  # no name, which is required
        _bytes(1, b"\xff"),
        name + _int(5, 2),  # no such value
        name + _bytes(100, b"an extension"),
        name + b"\x33\x08\x07",
        name + b"\x34",
    ]
    assert sql.of(_DECODE, [wire(number, _FIRST + one) for one in lost]) == [FAILED] * len(lost)
    assert sql.of(f"encode_registry(value, {number})", [b'{"count":1}']) == [FAILED]


def test_broken_and_hostile_records_fail(sql: Sql, registry: SchemaRegistry) -> None:
    number = registry.add("all", _ALL, "PROTOBUF")
    deep = b""
    for _ in range(101):
        deep = _bytes(37, deep)
    bomb = b""
    for _ in range(5_000):
        bomb = _bytes(1, b"type.googleapis.com/google.protobuf.Any") + _bytes(2, bomb)
    long = "".join(f" string {'x' * 200}{at} = {at};" for at in range(2, 12))
    wide = registry.add("wide", f"{_PROTO3}message M {{ repeated M m = 1;{long} }}", "PROTOBUF")
    broken = {
        "cut off": _bytes(14, b"abc")[:-1],
        "a length beyond the end": b"\x72" + varint(2**31 - 1) + b"x",
        "a number without an end": b"\x18" + b"\xff" * 11,
        "no text": _bytes(14, b"\xff"),
        "no field": b"\x00\x01",
        "an unknown field": _int(89, 1),
        "an unknown field within": _bytes(26, _ITEM) + _bytes(26, _int(3, 1)),
        "a group that ends": b"\x0c",
        "a group without an end": b"\x0b",
        "a wrong type": _bytes(3, b"x"),
        "too deep": deep,
        "a bomb of Any": _bytes(35, bomb),
        "an unknown field in an Any": _bytes(
            35, _bytes(1, b"type.googleapis.com/shop.orders.Other") + _bytes(2, _int(2, 1))
        ),
        "an Any of an unknown type": _bytes(35, _bytes(1, b"type.googleapis.com/x.Y")),
        "a time that is none": _bytes(29, _int(1, 2**62)),
        "a duration that is none": _bytes(30, _int(1, 1) + _int(2, -1)),
    }
    values = [wire(number, _FIRST + one) for one in broken.values()]
    # Fields that are not there are shown: two thousand bytes for each two.
    little, much = (wire(wide, _FIRST + _bytes(1, b"") * count) for count in (1, 40_000))
    shown, *got = sql.of(_DECODE, [little, *values, much])
    assert dict(zip([*broken, "too much JSON"], got, strict=True)) == dict.fromkeys(
        [*broken, "too much JSON"], FAILED
    )
    assert isinstance(shown, bytes)
    assert 40_000 * len(shown) > 2 * (64 << 20), "the message and one within it"
    fits = b""
    for _ in range(99):
        fits = _bytes(37, fits)
    assert sql.of(_BACK, [wire(number, _FIRST + fits)]) == [wire(number, _FIRST + fits)]


@pytest.mark.more
def test_json_that_does_not_fit_fails_and_the_reason_has_no_data(
    sql: Sql, registry: SchemaRegistry
) -> None:
    number = registry.add("all", _ALL, "PROTOBUF")
    encode = f"encode_registry(value, {number})"
    expected = {
        '{"i32":"4711x"}': "at $.i32: the schema needs int32 here",
        '{"i32":2147483648}': "at $.i32: the schema needs int32 here",
        '{"item":{"count":4711.5}}': "at $.item.count: the schema needs int32 here",
        '{"more":[{"count":1},{"kind":"SECRET4711"}]}': "at $.more[1].kind: the schema needs a "
        "value of the enum shop.orders.Order.Item.Kind here",
        '{"items":{"4711":{"count":"x"}}}': "at $.items: the schema needs an object: a map here",
        '{"secret4711":1}': "the object has a field that the message shop.orders.Order lacks",
        '{"item":{"secret4711":1}}': "at $.item: the object has a field that the message "
        "shop.orders.Order.Item lacks",
        '{"at":"4711"}': "at $.at: the schema needs google.protobuf.Timestamp here",
        '{"any":{"@type":"type.googleapis.com/x.Y4711"}}': "at $.any: the schema needs "
        "google.protobuf.Any here",
        '{"raw":"4711!"}': "at $.raw: the schema needs bytes here",
        '{"card":"4711","voucher":{}}': "the JSON does not fit the message shop.orders.Order",
        '{"label":"4711","name":"4711"}': "the JSON does not fit the message shop.orders.Order",
        '{"i32":1,"i32":4711}': "an object has the same field twice",
        "{'i32':4711}": "the text is no JSON",
        '{"i32":4711} {}': "more text follows the JSON document",
        "[4711]": "the schema needs an object: the message shop.orders.Order here",
        "": "the text is no JSON",
    }
    told = {text: _reason(sql, encode, text.encode()) for text in expected}
    assert told == {text: f"schema {number}: {said}" for text, said in expected.items()}
    deep = b'{"parent":' * 101 + b"{}" + b"}" * 101
    assert sql.of(encode, [deep, b'{"label":"\xff"}']) == [FAILED, FAILED]


def test_what_json_may_look_like(sql: Sql, registry: SchemaRegistry) -> None:
    """As Protobuf's own JSON: names of both kinds, numbers as texts, null for what is absent."""
    number = registry.add("all", _ALL, "PROTOBUF")
    text = b'{"is_paid":true,"i32":"7","i64":7,"colour":2,"label":null,"item":null}'
    wanted = _int(3, 7) + _int(4, 7) + _int(13, 1) + _int(20, 2)
    got = sql.of(f"encode_registry(value, {number})", [text])
    assert got == [wire(number, _FIRST + wanted)]


def test_a_masked_field(sql: Sql, registry: SchemaRegistry) -> None:
    number = registry.add("all", _ALL, "PROTOBUF")
    value = wire(number, _FIRST + _int(3, 4711) + _bytes(14, b"4711") + _bytes(25, _ITEM))
    masked = f"mask_json(mask_json({_DECODE}, '$.label'), '$.i32', '0')"
    wanted = wire(number, _FIRST + _bytes(14, b"***") + _bytes(25, _ITEM))
    assert sql.of(f"encode_registry({masked}, value)", [value]) == [wanted]


def test_references_to_other_files(sql: Sql, registry: SchemaRegistry) -> None:
    """A diamond, and public imports."""
    ids = 'syntax="proto3"; package shop; message Id { int32 n = 1; }'
    registry.add("id", ids, "PROTOBUF")
    of_id = (("shop/id.proto", "id", 1),)
    head = 'syntax="proto3"; package shop; import public "shop/id.proto";'
    registry.add("buyer", f"{head} message Buyer {{ Id id = 1; }}", "PROTOBUF", of_id)
    registry.add("an item", f"{head} message Item {{ Id id = 1; }}", "PROTOBUF", of_id)
    text = """syntax = "proto3"; package shop.orders;
    import "buyer.proto"; import weak 'item.proto'; import "confluent/type/decimal.proto";
    message Order { Buyer buyer = 1; shop.Item item = 2; .shop.Id id = 3;
      confluent.type.Decimal price = 4; }"""
    both = (("buyer.proto", "buyer", 1), ("item.proto", "an item", 1))
    number = registry.add("order", text, "PROTOBUF", both)
    value = wire(
        number,
        _FIRST + _bytes(1, _bytes(1, b"\x08\x01")) + _bytes(2, _bytes(1, b"\x08\x02"))
        + _bytes(3, b"\x08\x03") + _bytes(4, _bytes(1, b"\x07") + b"\x18\x02"),
    )  # fmt: skip
    shown = (
        b'{"buyer":{"id":{"n":1}},"item":{"id":{"n":2}},"id":{"n":3},'
        b'"price":{"value":"Bw==","precision":0,"scale":2}}'
    )
    assert sql.of(_DECODE, [value]) == [shown]
    assert sql.of(_BACK, [value]) == [value]


def test_a_descriptor_in_base64(sql: Sql, registry: SchemaRegistry) -> None:
    """Confluent's client for Python registers this; some registries give it back."""
    field = _bytes(1, b"name") + _int(3, 1) + _int(4, 1) + _int(5, 9)
    file = _bytes(1, b"user.proto") + _bytes(4, _bytes(1, b"User") + _bytes(2, field))
    text = base64.b64encode(file + _bytes(12, b"proto3")).decode()
    number = registry.add("user", text, "PROTOBUF")
    value = wire(number, _FIRST + _bytes(1, b"me"))
    assert sql.of(_DECODE, [value]) == [b'{"name":"me"}']
    assert sql.of(_BACK, [value]) == [value]


_PROTO3 = 'syntax = "proto3"; '
_UNUSABLE = [
    ('edition = "2023";', "line 1: it has an edition; proto2 and proto3 are supported"),
    ('syntax = "proto4";', "its syntax is neither proto2 nor proto3"),
    (_PROTO3 + "message A {\n int32 a = ; }", "line 2: a number is missing before ';'"),
    (_PROTO3 + "message A { int32 a = 1 }", "';' is missing before '}'"),
    (_PROTO3 + "message A { int32 a = 1;", "its text is cut off"),
    (_PROTO3 + "message { }", "a name is missing before '{'"),
    (_PROTO3 + 'import "x.proto;', "a string has no end"),
    (_PROTO3 + "/* message A { }", "a comment has no end"),
    (_PROTO3 + "option (a) = { b: 1", "its text is cut off"),
    (_PROTO3 + "message A { B b = 1; }", '"B" is not defined'),
    (_PROTO3 + "message A { int32 a = 1; int32 b = 1; }", "1"),
    (_PROTO3 + "message A{" * 61 + "}" * 61, "it has more than 60 levels of messages"),
    (_PROTO3 + 'import "x.proto"; message A { }', "imports x.proto, but has no reference"),
    (_PROTO3, "the schema has no message"),
    ("AAAA", "no descriptor in base64"),
    ("{}", "';' is missing before '{'"),
]


def test_schemas_that_cannot_be_used(sql: Sql, registry: SchemaRegistry) -> None:
    numbers, values = [], []
    for at, (text, said) in enumerate(_UNUSABLE):
        numbers.append(registry.add(f"wrong {said}", text, "PROTOBUF"))
        # Behind ten of these in a row no schema is asked for: each has a good one behind it.
        good = registry.add(f"good {at}", f"{_PROTO3}message A {{ }}", "PROTOBUF")
        values += [wire(numbers[-1], _FIRST), wire(good, _FIRST)]
    assert sql.of(_DECODE, values) == [FAILED, b"{}"] * len(_UNUSABLE)
    for number, (text, said) in zip(numbers, _UNUSABLE, strict=True):
        with pytest.raises(ConfigError) as caught:
            sql.plan(f"encode_registry(value, {number}) AS value")
        assert said in str(caught.value), text


def test_imports_in_a_circle(sql: Sql, registry: SchemaRegistry) -> None:
    text = 'syntax = "proto3"; import "a.proto"; message A { }'
    registry.add("circle", text, "PROTOBUF")
    number = registry.add("circles", text, "PROTOBUF", (("a.proto", "circle", 1),))
    reason = _reason(sql, _DECODE, wire(number, _FIRST))
    assert "its imports lead back to a.proto" in reason


def test_wrong_messages_are_refused_at_the_start(sql: Sql, registry: SchemaRegistry) -> None:
    registry.add("all", _ALL, "PROTOBUF")
    registry.add("avro", '"string"')
    for call, said in (
        ("'all', 'None'", "the schema has no message 'None'"),
        ("'all', topic", "its message must be a name in quotes"),
        ("'all', 1", "its message must be a name in quotes"),
        ("'avro', 'Order'", "is of type AVRO; only those of type PROTOBUF have messages"),
        ("'all', 'Order', 1", "it takes JSON and a schema, and for Protobuf a message's name"),
    ):
        with pytest.raises(ConfigError, match=r"file:8: key[.]select") as caught:
            sql.plan(f"encode_registry(value, {call}) AS value")
        assert said in str(caught.value)


def test_a_reference_may_have_the_name_that_a_schema_has_by_default(
    sql: Sql, registry: SchemaRegistry
) -> None:
    registry.add("other", "syntax = 'proto3'; message Other { int32 a = 1; }", "PROTOBUF")
    number = registry.add(
        "uses-it",
        "syntax = 'proto3'; import \"schema.proto\"; message M { Other o = 1; }",
        "PROTOBUF",
        (("schema.proto", "other", 1),),
    )
    assert sql.of(_DECODE, [wire(number, _FIRST + b"\x0a\x02\x08\x07")]) == [b'{"o":{"a":7}}']


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [("date", "Date", b"\x08\xea\x0f"), ("timeofday", "TimeOfDay", b"\x08\x07")],
)
def test_dates_and_times_of_day_need_no_reference(
    sql: Sql, registry: SchemaRegistry, name: str, kind: str, content: bytes
) -> None:
    number = registry.add(
        f"with-{name}",
        f"syntax = 'proto3'; import \"google/type/{name}.proto\";"
        f" message M {{ google.type.{kind} it = 1; }}",
        "PROTOBUF",
    )
    value = _FIRST + b"\x0a" + bytes([len(content)]) + content
    found = json.loads(sql.of(_DECODE, [wire(number, value)])[0] or b"")
    assert found["it"]["year" if name == "date" else "hours"] == (2026 if name == "date" else 7)


def test_files_that_import_all_before_them_are_seen_once(
    sql: Sql, registry: SchemaRegistry
) -> None:
    """There are 2^60 ways through 60 of them."""
    references: list[tuple[str, str, int]] = []
    for number in range(61):
        imports = "".join(f'import "f{one}.proto";' for one in range(number))
        made = registry.add(
            f"f{number}",
            f"syntax = 'proto3'; {imports} message M{number} {{ }}",
            "PROTOBUF",
            tuple(references),
        )
        references.append((f"f{number}.proto", f"f{number}", 1))
    assert sql.of(_DECODE, [wire(made, _FIRST)]) == [b"{}"]


def test_text_within_an_any_is_utf8_too(sql: Sql, registry: SchemaRegistry) -> None:
    number = registry.add(
        "anys",
        'syntax = "proto2"; import "google/protobuf/any.proto";'
        " message M { optional google.protobuf.Any any = 1; }"
        " message Inner { optional string s = 1; }",
        "PROTOBUF",
    )

    def value(text: bytes) -> bytes:
        inner = b"\x0a\x01" + text
        packed = b"\x0a\x07x/Inner\x12" + bytes([len(inner)]) + inner
        return wire(number, _FIRST + b"\x0a" + bytes([len(packed)]) + packed)

    good, bad = sql.of(_DECODE, [value(b"x"), value(b"\xff")])
    assert json.loads(good or b"")["any"]["s"] == "x"
    assert bad == FAILED


def test_a_record_of_too_many_messages_fails(sql: Sql, registry: SchemaRegistry) -> None:
    """Two bytes each, of which the library would make a hundred."""
    text = "syntax = 'proto3'; message M { repeated M m = 1; }"
    number = registry.add("many", text, "PROTOBUF")
    few, many = (wire(number, _FIRST + b"\x0a\x00" * count) for count in (400_000, 500_001))
    found = sql.of(_DECODE, [few, many])
    assert found[0] != FAILED
    assert found[1] == FAILED


@pytest.mark.parametrize("text", ["A", "QUJD="])
def test_a_schema_that_nobody_can_read_is_asked_for_once(
    sql: Sql, registry: SchemaRegistry, text: str
) -> None:
    number = registry.add(f"odd{text}", text, "PROTOBUF")
    assert sql.of(_DECODE, [wire(number, _FIRST)] * 30) == [FAILED] * 30
    assert registry.asked[f"/schemas/ids/{number}"] <= 3
