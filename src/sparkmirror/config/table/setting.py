"""The types of the settings table: one row, the values of its columns, and whole numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

__all__ = ["Scope", "Setting", "Status", "Type", "java_int"]

_WHOLE = re.compile(r"([+-]?)0*([0-9]+)")
_DIGITS_MAX = 19  # as many as 64 bits have


class Scope(Enum):
    """The part that reads a key; determines which spellings of the key work (see ``keys``)."""

    DRIVER = "driver"
    CONNECTOR = "connector"
    WORKER = "worker"
    CONSUMER = "consumer"
    PRODUCER = "producer"
    ADMIN = "admin"
    SPARKMIRROR = "sparkmirror"


class Status(Enum):
    """The effect of a key that a file sets.

    ``SUPPORTED``: it works. ``IGNORED``: it is checked, and one warning names it with the reason.
    ``REFUSED``: the mirror does not start with it.
    """

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


class Type(Enum):
    """Value types, as Java's configuration definitions name them."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    SHORT = "short"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    LIST = "list"
    PASSWORD = "password"  # noqa: S105 (the name of a type)
    CLASS = "class"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    ``default``: sparkmirror's default, spelled as in a file; ``None``: the key has no default, or
    one that depends on other keys (then ``doc`` says so). ``java_default``: Java's default if it
    differs. ``low``, ``high``: inclusive bounds of numbers. ``choices``: the accepted values (class
    names with or without package), compared without case if ``fold_case``. ``empty_allowed``:
    whether a list may be empty. ``regexes``: the value is a list of Java regexes. ``topics_map``:
    the value is rules ``REGEX => NAME``. ``reason``: why the key is ignored or refused. ``mm1``:
    spellings in MirrorMaker 1 (options, or other keys of its files).
    """

    name: str
    type: Type
    default: str | None
    doc: str
    scopes: tuple[Scope, ...]
    java_default: str | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    fold_case: bool = False
    empty_allowed: bool = True
    regexes: bool = False
    topics_map: bool = False
    required: bool = False
    status: Status = Status.SUPPORTED
    reason: str = ""
    mm1: tuple[str, ...] = ()


def java_int(text: str, bits: int = 32) -> int:
    """The whole number of ``bits`` bits that Java reads from ``text``, which has no blanks.

    Python's ``int`` also takes ``1_000``, blanks, digits of other scripts and numbers of any size.
    Raises ValueError with the fault, as the end of a sentence.
    """
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError("is not a whole number")
    sign, digits = match.groups()
    limit = 1 << bits - 1
    # Python's int refuses more than 4300 digits, also if they are zeros.
    if len(digits) > _DIGITS_MAX or not -limit <= int(sign + digits) < limit:
        raise ValueError(f"does not fit in {bits} bits")
    return int(sign + digits)
