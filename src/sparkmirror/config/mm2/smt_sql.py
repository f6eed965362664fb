"""Spark SQL that does to a record what single message transforms (SMTs) do in MirrorMaker 2.

What topics decide is settled before (`names.smts`). Left are predicates on records, records that
Filter leaves out, and headers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkmirror.errors import Defect
from sparkmirror.model import SmtSettings
from sparkmirror.names.smts import FILTER, by_topic

_PLAIN = re.compile(r"[A-Za-z0-9 ._:/-]*")
_NO_HEADERS = "array()"


def smt_sql(smts: Sequence[SmtSettings]) -> tuple[str, str]:
    """``where`` and ``select`` of a transform for ``smts``, which apply one after the other.

    Both may be empty. Predicates see the headers that the SMTs before them left.
    """
    headers, conditions = "headers", []
    for one in smts:
        if one.kind == FILTER:
            left_out = "true" if by_topic(one) else _predicate(one, headers)
            conditions.append(f"NOT {left_out}")
        else:
            headers = _changed(one, headers)
    select = "" if headers == "headers" else f"{headers} AS headers"
    return " AND ".join(conditions), select


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
