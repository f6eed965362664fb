"""What one row of the settings table says: the nouns that the table is written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """Who a key speaks to; it decides which spellings of the key work (see ``keys``)."""

    DRIVER = "driver"
    CONNECTOR = "connector"
    WORKER = "worker"
    CONSUMER = "consumer"
    PRODUCER = "producer"
    ADMIN = "admin"
    SPARKMIRROR = "sparkmirror"


class Status(Enum):
    """What becomes of a key that a file sets.

    ``SUPPORTED``: it does what it says. ``IGNORED``: it is checked, and named with the reason in
    one warning. ``REFUSED``: the mirror does not start with it.
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

    ``default`` is sparkmirror's, spelled as in a file; ``None`` = none, the key is optional or
    its default depends on other keys (``doc`` says so). ``java_default`` is given where Java's
    differs. ``low``/``high`` bound numbers, both inclusive. ``choices`` are the values accepted
    (class names: with or without package), compared without case if ``fold_case``.
    ``empty_allowed``: whether a list may have no elements at
    all. ``regexes``: a list of Java regexes. ``topics_map``: rules ``REGEX => NAME``. ``reason``:
    why it is ignored or refused.
    ``mm1``: spellings in MirrorMaker 1 (options, or keys of its files when they differ).
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
