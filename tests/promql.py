"""Prometheus's expressions on samples: as much of PromQL as alert rules take, and their tests.

Selectors with matchers, ranges and offsets; ``rate``, ``increase``, ``deriv``, ``absent``,
``time``; ``sum``, ``max``, ``min``, ``count`` with ``by``; ``or``, ``and``, ``unless``,
comparisons, ``+ - * /`` between series of equal labels and with numbers. Anything else is an error,
never a guess. The rules are those of Prometheus 2: a sample counts for five minutes, ranges include
both ends, and rates are extrapolated to the ends of their range.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Database", "Rule", "firing", "seconds", "series_of"]

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
_LOOKBACK_S = 300.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TOKEN = re.compile(
    r"""\s*(?:(?P<range>\[[0-9smhd]+\])|(?P<duration>[0-9]+[smhd]\b)|(?P<number>[0-9]+(?:\.[0-9]+)?)
    |(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/(){},=<>]))""",
    re.VERBOSE,
)
_COMPARE = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_REDUCE: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum, "max": max, "min": min, "count": len,
}  # fmt: skip
_MATCH: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "!~": lambda value, pattern: re.fullmatch(pattern, value) is None,
}
_LEVELS = (("or",), ("and", "unless"), tuple(_COMPARE), ("+", "-"), ("*", "/"))


def seconds(text: str) -> float:
    """A duration such as ``5m`` or ``1h30m``."""
    parts = re.findall(r"([0-9]+)([smhd])", text)
    assert "".join(map("".join, parts)) == text, text
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


@dataclass
class Database:
    """Samples by series: name and labels, then (seconds, value) in order; None ends a series."""

    series: dict[Labels, list[tuple[float, float | None]]] = field(default_factory=dict)

    def add(self, series: str, values: str, interval_s: float) -> None:
        """A series of promtool's tests, such as ``up{job="x"}`` and ``0+1x10``."""
        match = re.fullmatch(r"([a-z_:]+)(?:\{(.*)\})?", series)
        assert match is not None, series
        labels = dict(re.findall(r'([a-z_]+)="([^"]*)"', match[2] or ""))
        numbered = enumerate(series_of(values))
        self.series[frozenset({"__name__": match[1], **labels}.items())] = [
            (n * interval_s, value) for n, value in numbered if value != "missing"
        ]

    def chosen(
        self, matchers: list[tuple[str, str, str]]
    ) -> Iterator[tuple[Labels, list[tuple[float, float | None]]]]:
        for labels, samples in self.series.items():
            values = dict(labels)
            if all(_MATCH[how](values.get(name, ""), what) for name, how, what in matchers):
                yield labels, samples


def series_of(values: str) -> Iterator[Any]:
    """The values of promtool's notation: numbers, None for ``stale``, "missing" for ``_``."""
    for part in values.split():
        steps = re.fullmatch(r"(-?[0-9.]+)(?:([-+][0-9.]+))?x([0-9]+)", part)
        if part == "stale":
            yield None
        elif missing := re.fullmatch(r"_(?:x([0-9]+))?", part):
            yield from ["missing"] * int(missing[1] or 1)
        elif steps:
            first, step = float(steps[1]), float(steps[2] or 0)
            yield from (first + n * step for n in range(int(steps[3]) + 1))
        else:
            yield float(part)


class _Expression:
    """Parses while it evaluates, at one time."""

    def __init__(self, text: str, database: Database, now_s: float) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._database = database
        self._now_s = float(now_s)

    def value(self) -> Vector | float:
        found = self._binary(0)
        assert self._at == len(self._tokens), f"left over: {self._tokens[self._at :]}"
        return found

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self, wanted: str = "") -> tuple[str, str]:
        token = self._tokens[self._at]
        assert not wanted or token[1] == wanted, f"{wanted} expected, {token[1]} found"
        self._at += 1
        return token

    def _binary(self, level: int) -> Vector | float:
        if level == len(_LEVELS):
            return self._one()
        left = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            sign = self._next()[1]
            left = _joined(sign, left, self._binary(level + 1))
        return left

    def _one(self) -> Vector | float:
        kind, text = self._next()
        if text == "(":
            found = self._binary(0)
            self._next(")")
            return found
        if kind == "number":
            return float(text)
        assert kind == "name", f"{text} is not known here"
        if text in _REDUCE:
            return self._reduced(text)
        if self._peek() == "(":
            return self._called(text)
        return self._selected(text)

    def _reduced(self, name: str) -> Vector:
        self._next("by")
        self._next("(")
        kept = set()
        while self._peek() != ")":
            kept.add(self._next()[1])
            if self._peek() == ",":
                self._next()
        self._next(")")
        self._next("(")
        inner = self._binary(0)
        self._next(")")
        assert isinstance(inner, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            key = frozenset(one for one in labels if one[0] in kept)
            groups.setdefault(key, []).append(value)
        return {labels: float(_REDUCE[name](values)) for labels, values in groups.items()}

    def _called(self, name: str) -> Vector | float:
        self._next("(")
        if name == "time":
            self._next(")")
            return self._now_s
        selector = self._next()[1]
        if name == "absent":
            found = self._selected(selector)
            self._next(")")
            return {} if found else {frozenset(): 1.0}
        over = {"rate": _rate, "increase": _increase, "deriv": _deriv}[name]
        matchers, range_s, now_s = self._selector(selector)
        self._next(")")
        assert range_s, f"{name} takes a range"
        result: Vector = {}
        for labels, samples in self._database.chosen(matchers):
            inside = [(t, v) for t, v in samples if now_s - range_s <= t <= now_s and v is not None]
            if len(inside) > 1:
                result[_unnamed(labels)] = over(inside, now_s - range_s, now_s)
        return result

    def _selected(self, name: str) -> Vector:
        matchers, range_s, now_s = self._selector(name)
        assert not range_s, "a range stands alone"
        result: Vector = {}
        for labels, samples in self._database.chosen(matchers):
            inside = [(t, v) for t, v in samples if now_s - _LOOKBACK_S <= t <= now_s]
            if inside and inside[-1][1] is not None:
                result[labels] = inside[-1][1]
        return result

    def _selector(self, name: str) -> tuple[list[tuple[str, str, str]], float, float]:
        """Matchers, range in seconds (0: none) and the time that is looked at."""
        matchers = [("__name__", "=", name)]
        if self._peek() == "{":
            self._next()
            while self._peek() != "}":
                label, how, what = (self._next()[1] for _ in range(3))
                matchers.append((label, how, what[1:-1]))
                if self._peek() == ",":
                    self._next()
            self._next("}")
        range_s, now_s = 0.0, self._now_s
        if self._peek().startswith("["):
            range_s = seconds(self._next()[1][1:-1])
        if self._peek() == "offset":
            self._next()
            now_s -= seconds(self._next()[1])
        return matchers, range_s, now_s


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, f"not understood: {text[at:]}"
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _unnamed(labels: Labels) -> Labels:
    return frozenset(one for one in labels if one[0] != "__name__")


def _joined(sign: str, left: Vector | float, right: Vector | float) -> Vector | float:
    if sign in ("or", "and", "unless"):
        assert isinstance(left, dict)
        assert isinstance(right, dict)
        there = {_unnamed(labels) for labels in right}
        if sign == "or":
            mine = {_unnamed(labels) for labels in left}
            return left | {key: v for key, v in right.items() if _unnamed(key) not in mine}
        return {key: v for key, v in left.items() if (_unnamed(key) in there) is (sign == "and")}
    if sign in _COMPARE:
        assert isinstance(left, dict)
        assert isinstance(right, float)
        return {key: value for key, value in left.items() if _COMPARE[sign](value, right)}
    act = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[sign]
    if isinstance(left, float):
        if isinstance(right, float):
            return float(act(left, right))
        return {_unnamed(key): act(left, value) for key, value in right.items()}
    if isinstance(right, float):
        return {_unnamed(key): act(value, right) for key, value in left.items()}
    other = {_unnamed(key): value for key, value in right.items()}
    pairs = ((_unnamed(key), value) for key, value in left.items())
    return {key: act(value, other[key]) for key, value in pairs if key in other}


Samples = list[tuple[float, float]]


def _increase(samples: Samples, begin_s: float, end_s: float) -> float:
    """As Prometheus extrapolates it, resets of the counter counted."""
    values = [value for _, value in samples]
    grown = values[-1] - values[0]
    grown += sum(a for a, b in itertools.pairwise(values) if b < a)
    first_s, last_s = samples[0][0], samples[-1][0]
    sampled_s = last_s - first_s
    gap_s = sampled_s / (len(samples) - 1)
    before_s, after_s = first_s - begin_s, end_s - last_s
    if grown > 0 and values[0] >= 0:
        before_s = min(before_s, sampled_s * values[0] / grown)
    whole_s = sampled_s
    for part_s in (before_s, after_s):
        whole_s += part_s if part_s < gap_s * 1.1 else gap_s / 2
    return grown * whole_s / sampled_s


def _rate(samples: Samples, begin_s: float, end_s: float) -> float:
    return _increase(samples, begin_s, end_s) / (end_s - begin_s)


def _deriv(samples: Samples, begin_s: float, end_s: float) -> float:
    """Slope of the line of least squares."""
    times = [t for t, _ in samples]
    mean_t, mean_v = math.fsum(times) / len(times), math.fsum(v for _, v in samples) / len(times)
    over = math.fsum((t - mean_t) * (v - mean_v) for t, v in samples)
    return over / math.fsum((t - mean_t) ** 2 for t in times)


@dataclass(frozen=True)
class Rule:
    """An alert of a rules file."""

    alert: str
    expr: str
    for_s: float
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def firing(
    rule: Rule, database: Database, now_s: float, every_s: float
) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Labels and annotations of the rule's alerts that fire at ``now_s``."""
    since: dict[Labels, float] = {}
    active: Vector = {}
    for n in range(int(now_s // every_s) + 1):
        found = _Expression(rule.expr, database, n * every_s).value()
        assert isinstance(found, dict)
        active = {_unnamed(labels): value for labels, value in found.items()}
        since = {labels: since.get(labels, n * every_s) for labels in active}
    alerts = []
    for labels, began_s in since.items():
        if now_s - began_s >= rule.for_s:
            own = dict(labels)
            texts = {
                key: _filled(text, own, active[labels]) for key, text in rule.annotations.items()
            }
            alerts.append(({**own, **rule.labels}, texts))
    return alerts


def _filled(template: str, labels: Mapping[str, str], value: float) -> str:
    def fill(match: re.Match[str]) -> str:
        if label := re.fullmatch(r"\$labels\.(\w+)", match[1]):
            return labels[label[1]]
        shown = re.fullmatch(r'\$value \| printf "(%[.0-9]*[fg])"', match[1])
        assert shown is not None, f"not understood: {match[0]}"
        return shown[1] % value

    return re.sub(r"\{\{ (.*?) \}\}", fill, template)
