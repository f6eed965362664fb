r"""Maps of topic names: rules ``regex => name``. The first rule that matches a whole name counts.

The regexes are Java's (`names.java_regex`), and the right side has Java's replacement syntax:
``$1`` and ``${name}`` stand for groups, ``$0`` for the whole name, and a backslash escapes the next
character. A group that matched nothing is empty. The result is the whole name on the target.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping

from sparkmirror.errors import ConfigError
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.settings import TopicRule

__all__ = ["TOPIC_CHARS_MAX", "Part", "TopicsMap", "name_fault", "parse_name", "parse_rules"]

TOPIC_CHARS_MAX = 249
"""Kafka's limit for the length of a topic name."""

Part = str | int
"""A part of a rule's right side: literal text, or the number of a group."""

_LEGAL = frozenset(string.ascii_letters + string.digits + "._-")
_ARROW = "=>"
_SHOWN_CHARS_MAX = 120
_REFERENCE = re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}")


def name_fault(name: str) -> str:
    """Why Kafka does not allow this topic name, for example ``it is empty``; empty if it does."""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "Kafka does not allow this name"
    wrong = next((char for char in name if char not in _LEGAL), "")
    if wrong:
        return f"it contains {wrong!r}; topic names have only letters, digits, '.', '_' and '-'"
    if len(name) > TOPIC_CHARS_MAX:
        return f"it has {len(name)} characters; topic names have at most {TOPIC_CHARS_MAX}"
    return ""


def parse_rules(text: str, *, where: str = "") -> tuple[TopicRule, ...]:
    """The rules of ``regex => name; regex => name``; a last ``;`` is allowed.

    Raises ConfigError with the first invalid rule and ``where``.
    """
    parts = [part.strip() for part in text.split(";")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    rules = [_parse_rule(part, number, where) for number, part in enumerate(parts, 1)]
    for rule in rules:
        _check_rule(rule, where)
    return tuple(rules)


def _parse_rule(text: str, number: int, where: str) -> TopicRule:
    sides = [side.strip() for side in text.split(_ARROW)]
    shown = _shown(text)
    if not text:
        what, do = f"rule {number} is empty", "Remove the ';', or write REGEX => NAME."
    elif len(sides) == 1:
        what = f"the rule '{shown}' has no '{_ARROW}'"
        do = r"Write REGEX => NAME, for example ^eu[.](.*)$ => tenant-eu.$1."
    elif len(sides) > 2:
        what = f"the rule '{shown}' has more than one '{_ARROW}'"
        do = "Write a ';' between two rules."
    elif not sides[0]:
        what, do = f"the rule '{shown}' has no regex", "Write REGEX => NAME; .* matches all topics."
    elif not sides[1]:
        what = f"the rule '{shown}' gives no name"
        do = "Write the whole name after '=>'. To leave topics out, change the list of topics."
    else:
        return TopicRule(*sides)
    raise ConfigError(f"{what}.", where=where, do=do)


def _check_rule(rule: TopicRule, where: str) -> None:
    pattern = compile_regex(rule.regex, where=where)
    try:
        parts = parse_name(rule.name, pattern.groups, pattern.groupindex)
    except ValueError as error:
        raise ConfigError(
            f"'{_shown(rule.name)}' is an invalid name for '{_shown(rule.regex)}': {error}.",
            where=where,
            do="$1 stands for the first group in parentheses, $0 for the whole name.",
        ) from None
    plain = "".join(part for part in parts if isinstance(part, str))
    constant = all(isinstance(part, str) for part in parts)
    # The content of groups is only known for a given topic.
    fault = name_fault(plain) if constant or plain not in ("", ".", "..") else ""
    if fault:
        raise ConfigError(
            f"'{_shown(rule.name)}' is an invalid topic name: {fault}.",
            where=where,
            do="Write the name of the topic on the target.",
        )


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"


def parse_name(text: str, groups: int, named: Mapping[str, int]) -> tuple[Part, ...]:
    """The parts of a rule's right side, as Java's ``Matcher.replaceFirst`` reads it.

    ``groups``: number of groups of the regex. ``named``: numbers of its named groups. Raises
    ValueError.
    """
    parts: list[Part] = []
    at = 0

    def plain(chars: str) -> None:
        if parts and isinstance(parts[-1], str):
            parts[-1] += chars
        else:
            parts.append(chars)

    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            if at == len(text):
                raise ValueError("it ends in a lone backslash")
            plain(text[at])
            at += 1
        elif char != "$":
            plain(char)
        elif (match := _REFERENCE.match(text, at)) is not None:
            if match[1] not in named:
                raise ValueError(f"the regex has no group named {match[1]}")
            parts.append(named[match[1]])
            at = match.end()
        elif at < len(text) and text[at] in string.digits:
            number = int(text[at])
            at += 1
            if number > groups:
                raise ValueError(f"the regex has no group ${number}; it has {groups}")
            # As in Java, further digits count only if that group exists.
            while at < len(text) and text[at] in string.digits:
                longer = number * 10 + int(text[at])
                if longer > groups:
                    break
                number = longer
                at += 1
            parts.append(number)
        else:
            raise ValueError("a '$' is not followed by a number or a {name}")
    return tuple(parts)


class TopicsMap:
    """The compiled rules of one flow. Raises ConfigError for rules that `parse_rules` refuses."""

    def __init__(self, rules: Iterable[TopicRule]) -> None:
        self._rules: list[tuple[re.Pattern[str], tuple[Part, ...]]] = []
        for rule in rules:
            pattern = compile_regex(rule.regex)
            parts = parse_name(rule.name, pattern.groups, pattern.groupindex)
            self._rules.append((pattern, parts))

    def name(self, topic: str) -> str | None:
        """The name that ``topic`` gets; None if no rule matches."""
        found = self.find(topic)
        return None if found is None else found[1]

    def find(self, topic: str) -> tuple[int, str] | None:
        """The index of the first rule that matches ``topic``, and the name that it gives."""
        for index, (pattern, parts) in enumerate(self._rules):
            match = pattern.fullmatch(topic)
            if match is not None:
                given = (one if isinstance(one, str) else match[one] or "" for one in parts)
                return index, "".join(given)
        return None
