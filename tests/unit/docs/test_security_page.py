"""docs/security.md names a test for every way to connect, and those tests are there."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from tests.kafka.clusters.secure import LISTENERS
from tests.kafka.harness.ways import ROLES, WAYS
from tests.kafka.security import test_kerberos, test_security

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
LOGINS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"}
PROTOCOLS = {
    ("PLAINTEXT", "none"),
    ("SSL", "none"),
    ("SSL, mutual", "none"),
    *itertools.product(("SASL_PLAINTEXT", "SASL_SSL"), LOGINS),
}


def parameters(module: object) -> set[tuple[str, str, str]]:
    """What ``test_both_clients_work`` of ``module`` runs with."""
    (mark,) = (
        mark
        for mark in module.test_both_clients_work.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    return {getattr(way, "values", way) for way in mark.args[1]}  # some have marks of their own


def test_every_way_is_listed_with_its_test_and_no_other():
    row = re.compile(r"^\| ([A-Z_]+(?:, mutual)?) \| ([A-Z0-9-]+|none) \| `(.+?)` \| `(.+?)` \|$")
    rows = [match.groups() for match in map(row.match, PAGE.splitlines()) if match]
    assert {(protocol, login) for protocol, login, *_ in rows} == PROTOCOLS
    assert len(rows) == len(PROTOCOLS)
    there = {
        f"{module.__name__.rpartition('.')[2]}.py::test_both_clients_work[{'-'.join(way)}]": way
        for module in (test_security, test_kerberos)
        for way in parameters(module)
    }
    assert set(there.values()) == set(WAYS)
    assert {name for row in rows for name in row[2:]} == there.keys()
    for protocol, login, *names in rows:
        for role, name in zip(ROLES, names, strict=True):
            listener, mechanism, its_role = there[name]
            mutual = ", mutual" if listener == "MUTUAL" else ""
            assert (LISTENERS[listener] + mutual, mechanism or "none") == (protocol, login)
            assert its_role == role
