"""What the product uses of kafka-python: message schemas, SCRAM and the signature of AWS.

Connections, requests, errors, producers, consumers and assignors are our own.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sparkmirror
from tests.unit.test_layers import imported

SOURCE = Path(sparkmirror.__file__).parent

ALLOWED = {
    # The package itself, which is found there and not run.
    "kafka": "wire/kafka_python.py",
    # Messages, their encoders and decoders. ``broker_version_data`` also has a table of releases.
    "kafka.protocol": "wire",
    # The exchange of SCRAM (RFC 5802), made stricter.
    "kafka.net.sasl.scram": "wire/security/scram.py",
    # The signed message of AWS_MSK_IAM.
    "kafka.net.sasl.msk": "wire/security/sasl.py",
}
"""What may be imported, with all below it, and by which module or folder."""

# Parts of kafka.protocol that are a client, or raise kafka-python's own errors.
REFUSED = ("kafka.protocol.parser", "kafka.protocol.broker_version_data.BrokerVersionData")


def _within(name: str, whole: str, separator: str) -> bool:
    return name == whole or name.startswith(f"{whole}{separator}")


def may_import(name: str, module: str) -> bool:
    """Whether ``module``, a path below the product's source, may import ``name``."""
    if name.split(".", maxsplit=1)[0] != "kafka":
        return True
    if any(_within(name, one, ".") for one in REFUSED):
        return False
    return any(
        _within(name, package, ".") and _within(module, place, "/")
        for package, place in ALLOWED.items()
    )


def test_the_product_uses_no_more_of_kafka_python() -> None:
    wrong, used = [], set()
    for path in SOURCE.rglob("*.py"):
        module = path.relative_to(SOURCE).as_posix()
        package = ".".join(["sparkmirror", *path.relative_to(SOURCE).parts[:-1]])
        for name in imported(path.read_text(encoding="utf-8"), package):
            if not may_import(name, module):
                wrong.append(f"{module}: {name}")
            used |= {one for one in ALLOWED if _within(name, one, ".")}
    assert wrong == []
    assert used == set(ALLOWED), "a part that is no longer used must leave the table"


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("import kafka", "wire/net/connection.py"),
        ("import kafka.errors as kafka_errors", "wire/admin/requester.py"),
        ("from kafka import KafkaProducer", "demo/transactions.py"),
        ("from kafka.errors import KafkaError", "wire/net/connection.py"),
        ("from kafka.net.sasl.scram import ScramClient", "wire/net/connection.py"),
        ("from kafka.net.sasl.plain import SaslMechanismPlain", "wire/security/sasl.py"),
        ("from kafka.protocol.metadata import MetadataRequest", "control/loop.py"),
        ("from kafka.protocol.parser import KafkaProtocol", "wire/net/connection.py"),
        ("from kafka.protocol.broker_version_data import BrokerVersionData", "wire/net/x.py"),
        ("from kafka.structs import TopicPartition", "wire/group/assignors.py"),
        ("def late():\n    from kafka.coordinator import assignors", "wire/group/assignors.py"),
        ("import importlib\nimportlib.import_module('kafka.client')", "wire/net/connection.py"),
    ],
)
def test_what_is_refused(line: str, module: str) -> None:
    (name,) = (one for one in imported(line, "sparkmirror.wire") if one.startswith("kafka"))
    assert not may_import(name, module)


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from kafka.protocol.metadata import MetadataRequest", "wire/net/connection.py"),
        ("from kafka.net.sasl.scram import ScramClient", "wire/security/scram.py"),
        ("import kafkaesque", "control/loop.py"),
    ],
)
def test_what_is_allowed(line: str, module: str) -> None:
    assert all(may_import(name, module) for name in imported(line, "sparkmirror.wire"))


def test_only_the_limits_of_decoding_replace_parts_of_kafka_python() -> None:
    """An assignment to an attribute of something that was imported from kafka-python."""
    found = set()
    for path in (SOURCE / "wire").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        theirs = {
            one.asname or one.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kafka.")
            for one in node.names
        }
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id in theirs
                ):
                    found.add(path.relative_to(SOURCE).as_posix())
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                assert ast.unparse(node.args[0]) not in theirs, path
    assert found == {"wire/net/kafka_python_limits.py"}


def test_its_clients_are_loaded_when_somebody_asks_for_them() -> None:
    """In a process of its own, since this one has them."""
    code = """
import sys
import sparkmirror.control.loop
import sparkmirror.wire.admin.cluster
clients = {"kafka.admin", "kafka.consumer", "kafka.net", "kafka.producer"}
assert "kafka.protocol.metadata" in sys.modules
assert not clients & {*sys.modules}, clients & {*sys.modules}

import kafka
from kafka import KafkaConsumer
from kafka.errors import KafkaError
assert clients <= {*sys.modules}
assert kafka.KafkaAdminClient.__module__ == "kafka.admin.client"
assert kafka.errors.KafkaError is KafkaError
assert (kafka.__title__, type(kafka)) == ("kafka", type(sys))
assert not hasattr(kafka, "nothing")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
