"""Parses typed values from the text of a file; errors name the line and the key.

The rules are Java's: numbers and booleans are trimmed, a boolean is ``true`` or ``false`` in any
case, a list is split at commas with optional blanks around them and has no empty elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sparkmirror.config.files.origin import TABLE
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.table.setting import java_int
from sparkmirror.config.table.settings import HIDDEN, Scope, Setting, Type, find, redact
from sparkmirror.errors import ConfigError, Defect
from sparkmirror.names.java_regex import compile_list
from sparkmirror.names.topics_map import parse_rules
from sparkmirror.settings import TopicRule

_SHOWN_MAX = 20
_COMMA = re.compile(r"\s*,\s*")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
# Java's times of 64 bits may mean "never", but no wait of Python's takes 64 bits: a poll takes 31
# bits of milliseconds. These are 23 days, or 63 years.
_TIMES = (".ms", ".seconds")
_TIME_MAX = 2_000_000_000


def split_list(text: str) -> list[str]:
    """Split as Java splits a LIST value; blank text is an empty list, empty elements are kept."""
    text = text.strip()
    return _COMMA.split(text) if text else []


def parse_list(entry: Entry) -> tuple[str, ...]:
    """The elements without duplicates. Raises ConfigError for an empty element."""
    elements = split_list(entry.value)
    if "" in elements:
        raise ConfigError(
            f"{entry.key} has an empty element (a comma too many).",
            where=entry.where,
            do="Remove the comma; the empty value alone stands for an empty list.",
        )
    return tuple(dict.fromkeys(elements))


def parse_boolean(entry: Entry) -> bool:
    """``true`` or ``false`` in any case. Raises ConfigError for anything else."""
    text = entry.value.strip().lower()
    if text not in ("true", "false"):
        raise _bad(entry, "is neither true nor false", "Write true or false.")
    return text == "true"


def _parse_number(entry: Entry, setting: Setting) -> int | float:
    text = entry.value.strip()
    number: int | float
    if setting.type is Type.DOUBLE:
        if not _DECIMAL.fullmatch(text):
            raise _bad(entry, "is not a number", "Write a number such as 0.8.")
        number = float(text)
    else:
        try:
            number = java_int(text, _BITS[setting.type])
        except ValueError as error:
            raise _bad(entry, str(error), _how_to_write(text)) from None
    low, high = setting.low, setting.high
    if (low is not None and number < low) or (high is not None and number > high):
        least = _in_full(low or 0)
        bounds = f"at least {least}" if high is None else f"from {least} to {_in_full(high)}"
        raise _bad(entry, "is out of range", f"Write a number {bounds}.")
    return number


def _in_full(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _how_to_write(text: str) -> str:
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return "Write a number nearer to zero."
    hint = ""
    if re.match(r"[+-]?[0-9]+\s+[#!]", text):
        hint = " A comment after a value is part of it: put it on a line of its own."
    return f"Write digits only, without units.{hint}"


def _choose(entry: Entry, setting: Setting, value: str) -> str:
    """The choice that ``value`` names, as spelled in the table."""
    wanted = value
    if setting.type is Type.CLASS and value.startswith("org.apache.kafka."):
        wanted = value.rpartition(".")[2]
    for choice in setting.choices:
        if wanted == choice or (setting.fold_case and wanted.lower() == choice.lower()):
            return choice
    if setting.type is Type.CLASS and setting.reason:
        raise ConfigError(
            f"{entry.key}={shown(entry, value)} cannot be used: {setting.reason}.",
            where=entry.where,
            do=f"Remove the key, or name what is built in: {', '.join(setting.choices)}.",
        )
    choices = ", ".join(setting.choices)
    raise _bad(entry, "is not one of the values it can have", f"Choose from: {choices}.")


def _bad(entry: Entry, problem: str, do: str) -> ConfigError:
    value = shown(entry, entry.value.strip())
    return ConfigError(f"{entry.key}={value} {problem}.", where=entry.where, do=do)


def shown(entry: Entry, value: str) -> str:
    """``value``, which is part of ``entry``, for a message: hidden if it is a secret."""
    return HIDDEN if entry.secret else redact(entry.key, value)


def check_regexes(entry: Entry) -> None:
    """Raise ConfigError unless all elements of a list are Java regexes."""
    where = f"{entry.where}: {entry.key}"
    try:
        compile_list(parse_list(entry), where=where)
    except ConfigError as error:
        if not entry.secret:
            raise
        raise ConfigError("The value is an invalid regex.", where=where, do=error.do) from None


def topic_rules(entry: Entry) -> tuple[TopicRule, ...]:
    """The rules of a map of topic names; none for an empty value. Raises ConfigError."""
    if not entry.value.strip():
        return ()
    where = f"{entry.where}: {entry.key}"
    try:
        return parse_rules(entry.value, where=where)
    except ConfigError as error:
        if not entry.secret:
            raise
        raise ConfigError(
            "The value is an invalid map of topic names.", where=where, do=error.do
        ) from None


def check(entry: Entry, setting: Setting) -> None:
    """Raise ConfigError unless the value is valid for ``setting``."""
    if setting.type is Type.BOOLEAN:
        parse_boolean(entry)
    elif setting.type in _BITS or setting.type is Type.DOUBLE:
        _parse_number(entry, setting)
    elif setting.type is Type.LIST:
        elements = parse_list(entry)
        if not elements and not setting.empty_allowed:
            raise _bad(entry, "is empty", "Name at least one.")
        for element in elements if setting.choices else ():
            _choose(entry, setting, element)
        if setting.regexes:
            check_regexes(entry)
    elif setting.topics_map:
        topic_rules(entry)
    elif setting.choices:
        _choose(entry, setting, entry.value.strip())


class ValueReader:
    """Reads typed values from one derived configuration, with the table's types and defaults.

    ``conf``: key (without its scope) -> entry; ``scopes``: the scopes whose rows apply.
    """

    def __init__(self, conf: Mapping[str, Entry], *scopes: Scope) -> None:
        self.conf = conf
        self._scopes = scopes

    def _row(self, name: str) -> Setting:
        row = find(name, *self._scopes)
        if row is None:
            raise Defect(f"{name} is not in the settings table")
        return row

    def entry(self, name: str) -> Entry | None:
        """The entry of ``name``, or the table's default, or ``None``."""
        found = self.conf.get(name)
        if found is not None:
            return found
        default = self._row(name).default
        return None if default is None else Entry(name, default, TABLE)

    def given(self, name: str) -> bool:
        """Whether the file sets ``name``."""
        return name in self.conf

    def text(self, name: str) -> str:
        """A trimmed string; one of the choices if the table lists any; ``""`` if unset."""
        entry = self.entry(name)
        if entry is None:
            return ""
        row = self._row(name)
        value = entry.value.strip()
        return _choose(entry, row, value) if row.choices else value

    def integer(self, name: str) -> int:
        """A whole number within the table's range; a time of 64 bits is at most 2,000,000,000."""
        entry, row = self.entry(name), self._row(name)
        if entry is None:
            raise Defect(f"{name} has no default")
        number = int(_parse_number(entry, row))
        is_time = row.type is Type.LONG and name.endswith(_TIMES)
        return min(number, _TIME_MAX) if is_time else number

    def boolean(self, name: str) -> bool:
        """A boolean."""
        entry = self.entry(name)
        if entry is None:
            raise Defect(f"{name} has no default")
        return parse_boolean(entry)

    def rules(self, name: str) -> tuple[TopicRule, ...]:
        """The rules of a map of topic names."""
        entry = self.entry(name)
        return () if entry is None else topic_rules(entry)

    def elements(self, name: str) -> tuple[str, ...]:
        """A list's elements."""
        entry = self.entry(name)
        return () if entry is None else parse_list(entry)


def merge_errors(errors: Sequence[ConfigError], path: str) -> ConfigError:
    """One error that lists ``errors`` (at least one, shows at most twenty), each with its place."""
    if not errors:
        raise Defect("no errors to merge")
    told = list(dict.fromkeys(str(error) for error in errors))
    if len(told) == 1:
        return errors[0]
    listed = " ".join(f"({number}) {text}" for number, text in enumerate(told[:_SHOWN_MAX], 1))
    more = f" And {len(told) - _SHOWN_MAX:,} more." if len(told) > _SHOWN_MAX else ""
    return ConfigError(f"{len(told):,} settings are wrong. {listed}{more}", where=path)
