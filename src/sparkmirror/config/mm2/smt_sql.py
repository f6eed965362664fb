"""Spark SQL that does to a record what single message transforms (SMTs) do in MirrorMaker 2.

What topics decide is settled before (`names.smts`). Left are predicates on records, records that
Filter leaves out, headers, and TimestampRouter. The column ``topic`` is the remote topic's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkmirror.config.mm2.java_dates import Piece, date_pieces
from sparkmirror.errors import Defect
from sparkmirror.names.smts import FILTER, TIME_ROUTER, by_topic
from sparkmirror.transform_settings import SmtSettings

_PLAIN = re.compile(r"[A-Za-z0-9 ._:/-]*")
_NO_HEADERS = "array()"


def smt_sql(smts: Sequence[SmtSettings]) -> tuple[str, str]:
    """``where`` and ``select`` of a transform for ``smts``, which apply one after the other.

    Both may be empty. Predicates see the headers that the SMTs before them left.
    """
    headers, topic, conditions = "headers", "topic", []
    for one in smts:
        if one.kind == FILTER:
            left_out = "true" if by_topic(one) else _predicate(one, headers)
            conditions.append(f"NOT {left_out}")
        elif one.kind == TIME_ROUTER:
            name = _joined(topic_pieces(one.topic_format, one.time_format), topic)
            applies = "" if by_topic(one) else _predicate(one, headers)
            topic = f"CASE WHEN {applies} THEN {name} ELSE {topic} END" if applies else name
        else:
            headers = _changed(one, headers)
    columns = [
        f"{sql} AS {name}" for name, sql in (("headers", headers), ("topic", topic)) if sql != name
    ]
    return " AND ".join(conditions), ", ".join(columns)


def topic_pieces(topic_format: str, time_format: str) -> list[Piece]:
    """The parts of a name that TimestampRouter gives; SQL may be ``topic``, the name before.

    Raises ValueError for a format of times that cannot be translated.
    """
    times = date_pieces(time_format)
    found: list[Piece] = []
    for number, part in enumerate(re.split(r"(\$\{topic\}|\$\{timestamp\})", topic_format)):
        if number % 2 == 0:
            found.append((part, False))
        elif part == "${topic}":
            found.append(("topic", True))
        else:
            found += times
    return [one for one in found if one[0]]


def _joined(pieces: Sequence[Piece], topic: str) -> str:
    """SQL of the text; ``topic``: SQL of the name before."""
    shown = [
        topic if text == "topic" and sql else text if sql else _text(text) for text, sql in pieces
    ]
    return shown[0] if len(shown) == 1 else f"concat({', '.join(shown)})"


def _changed(one: SmtSettings, headers: str) -> str:
    """SQL of the headers after ``one``; ``headers``: SQL of those before it."""
    if by_topic(one):
        return _after(one, headers)
    # By a name, so that the SQL before is written, and computed, once.
    held = f"CASE WHEN {_predicate(one, 'held')} THEN {_after(one, 'held')} ELSE held END"
    return f"element_at(transform(array({headers}), held -> {held}), 1)"


def _after(one: SmtSettings, headers: str) -> str:
    if one.kind == "DropHeaders":
        names = ", ".join(map(_text, one.headers))
        return f"filter({headers}, one -> one.key NOT IN ({names}))"
    if one.kind == "InsertHeader":
        name = _text(one.headers[0])
        new = f"array(named_struct('key', {name}, 'value', CAST(NULL AS BINARY)))"
        return f"concat(coalesce({headers}, {_NO_HEADERS}), {new})"
    raise Defect(f"{one.kind} has no SQL")


def _predicate(one: SmtSettings, headers: str) -> str:
    if one.predicate == "RecordIsTombstone":
        found = "(value IS NULL)"
    else:
        found = f"exists({headers}, one -> one.key = {_text(one.argument)})"
        found = f"coalesce({found}, false)"  # a record without headers
    return f"(NOT {found})" if one.negate else found


def _text(text: str) -> str:
    """A literal. Spark replaces ``${name}`` even within one, and reads backslashes."""
    if _PLAIN.fullmatch(text):
        return f"'{text}'"
    return f"CAST(X'{text.encode().hex()}' AS STRING)"
