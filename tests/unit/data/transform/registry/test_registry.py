"""The schema registry itself: what it is asked, when, with which login, and what goes wrong."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.spark_errors import reason_of, table_of
from sparkmirror.errors import ConfigError
from sparkmirror.records.records import Record
from sparkmirror.transform_settings import RegistrySettings
from tests.certificates import PASSWORD, Authority, to_jks
from tests.registries import SchemaRegistry, basic, serving, wire
from tests.unit.data.transform.registry.sql import FAILED, Sql, flow, made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DECODE = "decode_registry(value)"
_PASSWORD = "a-secret-of-the-registry"
_LOGIN = basic("mirror", _PASSWORD)
_CARD = {"type": "record", "name": "Card", "fields": [{"name": "card", "type": "string"}]}


@pytest.fixture
def registry() -> SchemaRegistry:
    return SchemaRegistry()


@pytest.fixture
def url(registry: SchemaRegistry) -> Iterator[str]:
    with serving(registry) as address:
        yield address


def _reason(plan: TransformPlan, value: bytes) -> str:
    record = Record(7, 1_000, None, value, ())
    return reason_of(plan, 0, table_of("orders", 0, [record]))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def test_json_schema(spark: SparkSession, registry: SchemaRegistry, url: str) -> None:
    """The text is the payload; it is JSON, or the record fails."""
    number = registry.add("json", {"type": "object"}, "JSON")
    sql = Sql(spark, url)
    text = b' {"card" : "4111", "price":1.50}'
    given = [
        wire(number, text),
        wire(number, b'{"card":'),
        wire(number, b'"\xff"'),
        wire(number, b""),
    ]
    assert sql.of(_DECODE, [*given]) == [text, FAILED, FAILED, FAILED]
    masked = "encode_registry(mask_json(decode_registry(value), '$.card'), value)"
    assert sql.of(masked, [given[0], None]) == [
        wire(number, b' {"card" : "***", "price":1.50}'),
        None,
    ]
    assert sql.of("encode_registry(value, 'json')", [text, b"{", None]) == [
        *(wire(number, text), FAILED, None)
    ]


def test_a_schema_is_asked_for_once(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    number = registry.add("card", _CARD)
    value = wire(number, b"\x02x")
    plan = Sql(spark, url).plan(f"{_DECODE} AS value")
    assert made(plan, [value] * 50) == [b'{"card":"x"}'] * 50
    asked = registry.asked[f"/schemas/ids/{number}"]
    # The classes of the driver and of the executor are two, even in one JVM.
    assert 1 <= asked <= 2
    registry.status = 500
    assert made(plan, [value] * 50) == [b'{"card":"x"}'] * 50
    assert registry.asked[f"/schemas/ids/{number}"] == asked


def test_garbage_does_not_make_a_request_of_each_record(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    number = registry.add("card", _CARD)
    value = wire(number, b"\x02x")
    plan = Sql(spark, url).plan(f"{_DECODE} AS value")
    assert made(plan, [value]) == [b'{"card":"x"}']
    garbage = [wire(1_000_000 + n, b"") for n in range(2_000)]
    got = made(plan, [*garbage, value, b"", b"\x00\x00", b"\x01" + value[1:], b'{"card":1}'])
    assert got == [*[FAILED] * 2_000, b'{"card":"x"}', *[FAILED] * 4]
    asked = [path for path in registry.asked if path.startswith("/schemas/ids/100")]
    assert 10 <= len(asked) <= 100


def test_garbage_among_good_records_is_no_outage(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    """Schemas that the registry has are found, however many ids it does not have."""
    plan = Sql(spark, url).plan(f"{_DECODE} AS value")
    values = []
    for number in range(30):
        values.append(wire(2_000_000 + number, b""))
        values.append(wire(registry.add(f"card{number}", _CARD), b"\x02x"))
    assert made(plan, values) == [FAILED, b'{"card":"x"}'] * 30


def test_reasons_name_the_cause_without_data(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    number = registry.add("card", _CARD)
    thrift = registry.add("thrift", "struct A {}", "THRIFT")
    plan = Sql(spark, url).plan(f"{_DECODE} AS value")
    begin = "the value is not in the registry's format: it does not begin with a byte 0"
    assert _reason(plan, b"4111").startswith(begin)
    assert _reason(plan, wire(4111, b"")) == "the registry has no schema 4111"
    assert _reason(plan, wire(number, b"\x084711" + b"8" * 3)) == (
        f"schema {number}: 3 bytes follow the record"
    )
    assert _reason(plan, wire(number, b"\x0a4711")) == (
        f"schema {number}: at $.card: the value ends within it"
    )
    assert _reason(plan, wire(thrift, b"\x00")) == (
        f"schema {thrift} is of type THRIFT; decode_registry and encode_registry know AVRO, JSON "
        "and PROTOBUF"
    )
    plan = Sql(spark, url).plan(f"encode_registry(value, {number}) AS value")
    wanted = f"schema {number}: at $.card: the schema needs a string here"
    assert _reason(plan, b'{"card":4711}') == wanted
    assert "4711" not in _reason(plan, b'{"4711":"x","card":"x"}')


def test_an_outage_fails_records_at_once_and_ends_by_itself(
    spark: SparkSession, registry: SchemaRegistry
) -> None:
    number, port = registry.add("card", _CARD), _free_port()
    values: list[bytes | None] = [wire(number, b"\x02x")] * 100
    with serving(registry, port=port) as url:
        plan = Sql(spark, url).plan(f"{_DECODE} AS value")
    began = time.monotonic()
    assert made(plan, values) == [FAILED] * 100
    said = _reason(plan, wire(number, b"\x02x"))
    assert said.startswith(f"the registry {url} is unavailable: ConnectException")
    with serving(registry, port=port):
        while made(plan, values) != [b'{"card":"x"}'] * 100:
            assert time.monotonic() - began < 60


def test_a_registry_that_hangs_holds_up_a_task_once(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    number = registry.add("card", _CARD)
    plan = Sql(spark, url).plan(f"{_DECODE} AS value")
    registry.hangs = True
    began = time.monotonic()
    assert made(plan, [wire(number, b"\x02x")] * 500) == [FAILED] * 500
    assert 2 < time.monotonic() - began < 30
    assert registry.asked == {"/schemas/types": 1}
    assert _reason(plan, wire(number, b"")).endswith("is unavailable: no answer within 2500 ms")


def test_replicas_of_one_registry(spark: SparkSession, registry: SchemaRegistry, url: str) -> None:
    number = registry.add("card", _CARD)
    sql = Sql(spark, f"http://127.0.0.1:{_free_port()}", url)
    assert sql.of(_DECODE, [wire(number, b"\x02x")]) == [b'{"card":"x"}']


@pytest.mark.parametrize("header", [_LOGIN, "Bearer abc.def"])
def test_the_login(spark: SparkSession, header: str) -> None:
    """Executors have it, and no plan shows it."""
    registry = SchemaRegistry(header)
    number = registry.add("card", _CARD)
    with serving(registry) as url:
        sql = Sql(spark, url)
        sql.settings = replace(sql.settings, authorization=header)
        plan = sql.plan(f"encode_registry({_DECODE}, 'card') AS value")
        assert made(plan, [wire(number, b"\x02x")]) == [wire(number, b"\x02x")]
        rows = plan.session.createDataFrame([], "topic string, partition int, offset bigint, "
                                            "timestamp timestamp, timestampType int, key binary, "
                                            "value binary, headers array<struct<key:string,"
                                            "value:binary>>")  # fmt: skip
        execution = plan.untried(rows, 0)._jdf.queryExecution()
        shown = f"{execution.toString()} {execution.analyzed().toJSON()}"
        assert "encode_registry" in shown
        assert header.split()[1] not in shown
        assert url not in shown


def test_https_with_a_truststore(spark: SparkSession, tmp_path: Path) -> None:
    authority, other = Authority(), Authority("Another one")
    served = authority.certify("registry", "127.0.0.1").pem_file(tmp_path / "registry.pem")
    registry = SchemaRegistry()
    number = registry.add("card", _CARD)
    pem = tmp_path / "authority.pem"
    pem.write_text(other.pem() + authority.pem())
    pkcs12 = authority.truststore(tmp_path / "authority.p12")
    stores = [
        *((pkcs12, "PKCS12"), (pkcs12, "JKS")),
        *((to_jks(pkcs12, tmp_path / "authority.jks"), "JKS"), (pem, "PEM")),
    ]
    with serving(registry, served) as url:
        sql = Sql(spark, url)
        for path, kind in stores:
            password = "" if kind == "PEM" else PASSWORD
            sql.settings = RegistrySettings((url,), "", str(path), kind, password)
            assert sql.of(_DECODE, [wire(number, b"\x02x")]) == [b'{"card":"x"}']
        pem.write_text(other.pem())
        places = (("ssl.truststore.location", "file:5: truststore"), ("url", "file:3: url"))
        for store, said in (
            (RegistrySettings((url,), places=places), "PKIX"),
            (RegistrySettings((url,), "", str(pem), "PEM", places=places), "PKIX"),
            (RegistrySettings((url,), "", str(pkcs12), "JKS", "wrong", places=places), "password"),
            (RegistrySettings((url,), "", str(pkcs12), "PEM", places=places), "the truststore"),
            (RegistrySettings((url,), "", "/nowhere", places=places), "cannot be read (No such"),
        ):
            sql.settings = store
            with pytest.raises(ConfigError, match="file:5") as caught:
                sql.plan(f"{_DECODE} AS value")
            assert said in str(caught.value)
    elsewhere = authority.certify("registry", "another.host").pem_file(tmp_path / "other.pem")
    with serving(registry, elsewhere) as url:
        sql.settings = RegistrySettings((url,), "", str(pkcs12), "PKCS12", PASSWORD, places)
        with pytest.raises(ConfigError, match="as its certificate has it"):
            sql.plan(f"{_DECODE} AS value")


def test_a_client_certificate(spark: SparkSession, tmp_path: Path) -> None:
    """From stores of every type, and as text; without a truststore as well."""
    authority, own = Authority(), Authority("Of clients")
    served = authority.certify("registry", "127.0.0.1").pem_file(tmp_path / "registry.pem")
    clients = tmp_path / "clients.pem"
    clients.write_text(own.pem())
    client = Authority("Between", above=own).certify("mirror")
    registry = SchemaRegistry()
    number = registry.add("card", _CARD)
    truststore = authority.truststore(tmp_path / "authority.p12")
    pkcs12 = client.pkcs12(tmp_path / "own.p12")
    jks = to_jks(pkcs12, tmp_path / "own.jks", key_password="another-password")
    secret = ("ssl.keystore.password", PASSWORD)
    stores: list[tuple[tuple[str, str], ...]] = [
        (("ssl.keystore.location", str(pkcs12)), secret, ("ssl.keystore.type", "PKCS12")),
        (("ssl.key.password", "another-password"), ("ssl.keystore.location", str(jks)), secret),
        (
            ("ssl.key.password", "a-password"),
            ("ssl.keystore.location", str(client.pem_file(tmp_path / "own.pem", "a-password"))),
            ("ssl.keystore.type", "PEM"),
        ),
        (
            ("ssl.keystore.certificate.chain", client.chain_pem()),
            ("ssl.keystore.key", client.key_pem()),
            ("ssl.keystore.type", "PEM"),
        ),
    ]
    places = (("ssl.keystore.location", "file:6: keystore"), ("url", "file:3: url"))
    with serving(registry, served, clients=clients) as url:
        sql = Sql(spark, url)
        trusting = RegistrySettings(
            (url,), "", str(truststore), "PKCS12", PASSWORD, places, stores[0]
        )
        for store in stores:
            sql.settings = replace(trusting, keystore=store)
            assert sql.of(_DECODE, [wire(number, b"\x02x")]) == [b'{"card":"x"}']
        other = Authority("Another one").certify("other").pkcs12(tmp_path / "other.p12")
        for keystore in ((), (("ssl.keystore.location", str(other)), secret)):
            sql.settings = replace(trusting, keystore=keystore)
            with pytest.raises(ConfigError, match="The schema registry cannot be used"):
                sql.plan(f"{_DECODE} AS value")
        sql.settings = replace(trusting, truststore="", truststore_password="")
        with pytest.raises(ConfigError, match="PKIX"):
            sql.plan(f"{_DECODE} AS value")
        wrong = (("ssl.keystore.location", str(pkcs12)), ("ssl.keystore.password", "wrong-secret"))
        sql.settings = replace(trusting, keystore=wrong)
        with pytest.raises(ConfigError, match="file:6: keystore") as caught:
            sql.plan(f"{_DECODE} AS value")
        assert caught.value.do == "Check ssl.keystore.password."
        assert "wrong-secret" not in str(caught.value)


def test_a_registry_that_cannot_be_used_is_refused_at_the_start(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    registry.login = _LOGIN
    sql = Sql(spark, url)
    with pytest.raises(ConfigError) as caught:
        sql.plan(f"{_DECODE} AS value")
    assert "refuses the login (HTTP 401)" in str(caught.value)
    assert "Set A->A.sparkmirror.registry.basic.auth.user.info or A->A." in str(caught.value.do)
    assert caught.value.where == "file:3: sparkmirror.registry.url"
    registry.login, registry.status = "", 503
    with pytest.raises(ConfigError, match="is unavailable: HTTP 503"):
        sql.plan(f"{_DECODE} AS value")


@pytest.mark.more
def test_a_registry_that_hangs_is_refused_at_the_start(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    sql = Sql(spark, url)
    registry.hangs = True
    began = time.monotonic()
    with pytest.raises(ConfigError, match="no answer within 10000 ms") as caught:
        sql.plan(f"{_DECODE} AS value")
    assert time.monotonic() - began < 60
    assert caught.value.do == "Start the registry, or correct A->A.sparkmirror.registry.url."


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("decode_registry(value, 1) AS value", "decode_registry: it takes a value"),
        ("decode_registry(topic) AS value", "is of type string, not binary"),
        ("encode_registry(value) AS value", "encode_registry: it takes JSON and a schema"),
        ("encode_registry(1, 1) AS value", "is of type int, not binary or string"),
        ("encode_registry(value, 99) AS value", "encode_registry: the registry has no schema 99"),
        ("encode_registry(value, 'none') AS value", "the registry has no subject 'none'"),
        ("encode_registry(value, 'thrift') AS value", "schema 1 is of type THRIFT"),
        ("encode_registry(value, topic) AS value", "its subject must be a text in quotes"),
        ("encode_registry(value, 1.5) AS value", "give a schema's id, a subject, or a value"),
        ("encode_registry(value, CAST(NULL AS INT)) AS value", "its second argument is NULL"),
    ],
)
def test_wrong_calls_are_refused_at_the_start(
    spark: SparkSession, registry: SchemaRegistry, url: str, select: str, said: str
) -> None:
    registry.add("thrift", "struct A {}", "THRIFT")
    with pytest.raises(ConfigError, match=r"file:8: key[.]select") as caught:
        Sql(spark, url).plan(select)
    assert said in str(caught.value)


def test_a_call_without_a_registry_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as caught:
        TransformPlan(spark, flow(RegistrySettings(), f"{_DECODE} AS value"))
    assert "decode_registry needs a schema registry" in str(caught.value)
    assert caught.value.do == "Set A->A.sparkmirror.registry.url to its address."


def test_the_schema_of_each_record_may_be_a_column(
    spark: SparkSession, registry: SchemaRegistry, url: str
) -> None:
    card, text = registry.add("card", _CARD), registry.add("text", '"string"')
    column = f"IF(value = X'227822', {text}, {card})"
    got = Sql(spark, url).of(f"encode_registry(value, {column})", [b'"x"', b'{"card":"x"}'])
    assert got == [wire(text, b"\x02x"), wire(card, b"\x02x")]
    assert Sql(spark, url).of(
        "encode_registry(value, CAST(CAST(key AS STRING) AS INT))", [b"1"]
    ) == [FAILED]
