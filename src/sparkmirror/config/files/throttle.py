"""Rates such as ``50MB/s``, daily windows such as ``08:00-18:00``, and rules made of both. Pure.

Settings, the command ``sparkmirror throttle`` and the driver read them with these functions.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader
from sparkmirror.errors import ConfigError
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.settings import ThrottleRule

__all__ = [
    "RULES_MAX",
    "check_rule",
    "in_window",
    "parse_between",
    "parse_rate",
    "rate_text",
    "rule_text",
    "throttle_rules",
]

RULES_MAX = 16
"""Largest number of limits of one flow: each has buckets in every slot."""
_REGEX_CHARS_MAX = 1_000
_BYTES_S_MIN, _BYTES_S_MAX = 1_000, 10**12

_RATE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]+)(/s|ps)")
_UNITS: dict[str, float] = {"B": 1, "bit": 1 / 8, "KB": 1e3, "Kbit": 125}
for _power, _prefix in enumerate("kMGT", 1):
    _UNITS[f"{_prefix}B"] = 10.0 ** (3 * _power)
    _UNITS[f"{_prefix}bit"] = 10.0 ** (3 * _power) / 8
    _UNITS[f"{_prefix.upper()}iB"] = 2.0 ** (10 * _power)
    _UNITS[f"{_prefix.upper()}ibit"] = 2.0 ** (10 * _power) / 8
# Mbps is how links are sold, so its b is a bit.
_PER_SECOND = {"kb": "kbit", "Kb": "kbit", "Mb": "Mbit", "Gb": "Gbit", "Tb": "Tbit"}
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)|24:00")

_KEYS = ("sparkmirror.throttle", "sparkmirror.throttle.between", "sparkmirror.throttle.topics")

_RATE_DO = (
    "Write a number and a unit per second, such as 50MB/s (10^6 bytes), 50MiB/s (2^20 bytes) or"
    " 400Mbit/s"
)
_BETWEEN_DO = "Write HH:MM-HH:MM, such as 08:00-18:00, or 22:00-06:00 for a window over midnight."


def parse_rate(text: str, *, where: str) -> int:
    """Bytes per second of ``text``; 0 for ``off``. Raises ConfigError that names ``where``."""
    given = text.strip()
    if given.lower() == "off":
        return 0
    match = _RATE.fullmatch(given)
    unit = "" if match is None else match[2]
    if match is not None and match[3] == "ps":
        unit = _PER_SECOND.get(unit, unit)
    if match is None or unit not in _UNITS:
        raise ConfigError(
            f"{given!r} is not a rate.{_rate_hint(given, match)}", where=where, do=f"{_RATE_DO}."
        )
    bytes_s = round(float(match[1]) * _UNITS[unit])
    if not _BYTES_S_MIN <= bytes_s <= _BYTES_S_MAX:
        raise ConfigError(
            f"{given!r} is {'less than 1 kB/s' if bytes_s < _BYTES_S_MIN else 'over 1 TB/s'}.",
            where=where,
            do=f"{_RATE_DO}. To mirror nothing, use sparkmirror pause; for no limit, off.",
        )
    return bytes_s


def _rate_hint(given: str, match: re.Match[str] | None) -> str:
    if match is None:
        if re.fullmatch(r"[\d.]+\s*([A-Za-z]+)?", given):
            return " A unit per second is missing."
        return ""
    if re.fullmatch(r"[kKmMgGtT]b", match[2]):
        return f" {match[2]} may mean bytes or bits."
    return f" The unit {match[2]!r} is unknown."


def rate_text(bytes_s: float) -> str:
    """A rate for people: ``50 MB/s``, ``off`` for 0."""
    if not bytes_s:
        return "off"
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if bytes_s >= size:
            return f"{bytes_s / size:.4g} {unit}/s"
    return f"{bytes_s:.0f} B/s"


def parse_between(text: str, *, where: str) -> str:
    """A daily window as ``HH:MM-HH:MM``; empty for empty ``text``. Raises ConfigError."""
    given = text.strip()
    if not given:
        return ""
    first, dash, last = (part.strip() for part in given.partition("-"))
    if not dash or not _TIME.fullmatch(first) or not _TIME.fullmatch(last) or first == "24:00":
        raise ConfigError(f"{given!r} is not a daily window.", where=where, do=_BETWEEN_DO)
    start, end = _minutes(first), _minutes(last)
    if start == end:
        raise ConfigError(
            f"{given!r} begins when it ends.",
            where=where,
            do=f"{_BETWEEN_DO} For the whole day, leave it out.",
        )
    return f"{_clock(start)}-{_clock(end)}"


def _minutes(clock: str) -> int:
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def in_window(between: str, now: time.struct_time) -> bool:
    """Whether the local time ``now`` is in a window of `parse_between`; always in an empty one.

    The start belongs to the window, the end does not. A window whose end is before its start goes
    over midnight.
    """
    if not between:
        return True
    start, end = map(_minutes, between.split("-"))
    minute = now.tm_hour * 60 + now.tm_min
    if start < end:
        return start <= minute < end
    return minute >= start or minute < end


def rule_text(rule: ThrottleRule) -> str:
    """A rule for people: ``50 MB/s between 08:00 and 18:00 for topics orders.*``."""
    said = rate_text(rule.bytes_s)
    if rule.between:
        start, _, end = rule.between.partition("-")
        said += f" between {start} and {end}"
    return said + (f" for topics {rule.topics}" if rule.topics else "")


def check_rule(rule: ThrottleRule, *, where: str) -> ThrottleRule:
    """``rule`` with its window spelled in full. Raises ConfigError if a part is wrong."""
    if len(rule.topics) > _REGEX_CHARS_MAX:
        raise ConfigError(
            f"the regex of topics has {len(rule.topics):,} characters.",
            where=where,
            do=f"Use at most {_REGEX_CHARS_MAX:,}.",
        )
    if rule.topics:
        compile_regex(rule.topics, where=where)
    return replace(rule, between=parse_between(rule.between, where=where))


def throttle_rules(own: ValueReader) -> tuple[ThrottleRule, ...]:
    """The limits that a file sets for a flow. Raises ConfigError with file, line and key.

    ``own``: reads sparkmirror's own keys.
    """
    rate, between, topics = map(own.entry, _KEYS)
    try:
        return _rules(rate, between, topics)
    except ConfigError as error:
        if not any(one is not None and one.secret for one in (rate, between, topics)):
            raise
        raise ConfigError(
            "The value is an invalid limit.", where=error.where, do=error.do
        ) from None


def _rules(
    rate: Entry | None, between: Entry | None, topics: Entry | None
) -> tuple[ThrottleRule, ...]:
    rules: list[ThrottleRule] = []
    if between is not None:
        parse_between(between.value, where=_place(between))
    if rate is not None and rate.value.strip():
        bytes_s = parse_rate(rate.value, where=_place(rate))
        window = "" if between is None else parse_between(between.value, where=_place(between))
        if bytes_s:
            rules.append(ThrottleRule("", bytes_s, window))
    for text in () if topics is None else topics.value.split(";"):
        if topics is not None and text.strip():
            rules.append(_topic_rule(text, where=_place(topics)))
    names = [rule.topics for rule in rules]
    if topics is not None and len(set(names)) < len(names):
        raise ConfigError(
            "two rules have the same regex.", where=_place(topics), do="Leave one of them."
        )
    if topics is not None and len(rules) > RULES_MAX:
        raise ConfigError(
            f"{len(rules)} limits are too many.", where=_place(topics), do=f"At most {RULES_MAX}."
        )
    return tuple(rules)


def _place(entry: Entry) -> str:
    return f"{entry.where}: {entry.key}"


def _topic_rule(text: str, *, where: str) -> ThrottleRule:
    regex, arrow, rest = (part.strip() for part in text.rpartition("=>"))
    rate, _, between = rest.partition(" ") if rest else ("", "", "")
    if not arrow or not regex or not rate:
        raise ConfigError(
            f"{text.strip()!r} is not a rule.",
            where=where,
            do="Write REGEX => RATE, such as orders.* => 10MB/s, with HH:MM-HH:MM behind it for a"
            " daily window; separate rules by semicolons.",
        )
    bytes_s = parse_rate(rate, where=where)
    if not bytes_s:
        raise ConfigError(
            f"{regex!r} has no limit.", where=where, do="Leave the rule out instead of off."
        )
    return check_rule(ThrottleRule(regex, bytes_s, between), where=where)
