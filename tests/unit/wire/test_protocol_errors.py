"""Error codes: their names and kinds are those of Java's class ``Errors``."""

from __future__ import annotations

import pytest

from sparkmirror.wire.cluster import error_codes
from sparkmirror.wire.net.framing import ConnectionLost
from sparkmirror.wire.protocol_errors import (
    ApiUnsupported,
    BrokerError,
    NoBroker,
    UnexpectedResponse,
    UnreadableResponse,
    code_of,
    error_name,
    is_retriable,
)
from tests.vectors import HERE

JAVA = [
    line.split("\t") for line in (HERE / "error_codes_4.4.0.tsv").read_text("utf-8").splitlines()
]


def test_every_code_is_named_as_in_java() -> None:
    assert len(JAVA) == 138
    assert [error_name(int(code)) for code, *_ in JAVA] == [name for _, name, *_ in JAVA]
    assert [code_of(name) for _, name, *_ in JAVA] == [int(code) for code, *_ in JAVA]


def test_the_kinds_are_those_of_java() -> None:
    found = []
    for code, name, *_ in JAVA:
        error = BrokerError(int(code))
        kinds = error.retriable, error.is_authorization, error.is_authentication
        found.append([code, name, *(str(one).lower() for one in kinds)])
        assert is_retriable(int(code)) == error.retriable
    assert found == JAVA


def test_no_other_code_is_known() -> None:
    known = {int(code) for code, *_ in JAVA}
    for code in set(range(-300, 300)) - known:
        assert error_name(code) == f"error code {code}"
        assert not is_retriable(code)
    with pytest.raises(KeyError):
        code_of("NO_SUCH_NAME")


def test_the_constants_have_the_codes_of_their_names() -> None:
    constants = {
        name: value
        for name, value in vars(error_codes).items()
        if name.isupper() and isinstance(value, int)
    }
    assert constants["CORRUPT_MESSAGE"] == 2
    assert len(constants) > 15
    assert {name: error_name(code) for name, code in constants.items()} == {
        name: name for name in constants
    }


def test_the_data_path_retries_what_java_retries_where_it_can_help() -> None:
    """Except for one: UNKNOWN_SERVER_ERROR. What is left out cannot come from these requests."""
    ours = {error_name(code) for code in error_codes.RETRIABLE}
    java = {name for _, name, retriable, *_ in JAVA if retriable == "true"}
    assert ours - java == {"UNKNOWN_SERVER_ERROR"}
    assert not error_codes.FENCED & error_codes.RETRIABLE
    assert not error_codes.REFUSED & error_codes.RETRIABLE


def test_the_text_has_the_name_and_what_the_broker_said() -> None:
    assert str(BrokerError(44)) == "POLICY_VIOLATION"
    assert str(BrokerError(44, "too many partitions")) == "POLICY_VIOLATION: too many partitions"
    assert (BrokerError(44).message, BrokerError(44, None).message) == ("", "")


def test_only_what_may_pass_is_worth_a_retry() -> None:
    assert ConnectionLost("x").retriable
    assert NoBroker("x").retriable
    assert not ApiUnsupported("x").retriable
    assert not UnreadableResponse("x").retriable
    assert UnexpectedResponse("x").retriable
