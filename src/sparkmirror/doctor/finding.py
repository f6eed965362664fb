"""Findings: the results of all checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from sparkmirror.errors import Denied, MirrorError, Unreachable, Unsupported

__all__ = ["Finding", "Level", "at_work", "counts", "failed", "gathered", "listed", "ok", "skipped"]

_NAMES_MAX = 6


class Level(Enum):
    """Severity of a finding. ``SKIP``: the check could not be run; ``do`` says what it needs."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check.

    ``subject``: the cluster, broker, topic, group or flow. ``tried``: what was done. ``found``: the
    result. ``do``: what the user should do. ``place``: host that ran the check; empty: this one.
    """

    check: str
    level: Level
    subject: str
    tried: str
    found: str
    do: str = ""
    place: str = ""


def ok(check: str, subject: str, tried: str, found: str) -> Finding:
    """The finding of a check that succeeded."""
    return Finding(check, Level.OK, subject, tried, found)


def failed(check: str, subject: str, tried: str, error: MirrorError) -> Finding:
    """The finding of a check that ended with an error."""
    found = error.what.rstrip(".")
    return Finding(check, Level.FAIL, subject, tried, found, error.do)


def skipped(check: str, subject: str, tried: str, error: MirrorError) -> Finding:
    """The finding of an optional check that could not be run."""
    return Finding(check, Level.SKIP, subject, tried, error.what.rstrip("."), error.do)


def at_work(check: str, subject: str, tried: str, error: MirrorError) -> Finding:
    """`skipped` if the request was denied, unsupported or got no response; else `failed`."""
    small = isinstance(error, Denied | Unsupported | Unreachable)
    return (skipped if small else failed)(check, subject, tried, error)


def listed(names: Iterable[str]) -> str:
    """The first of ``names`` as text, and the number of the others."""
    known = list(names)
    rest = len(known) - _NAMES_MAX
    shown = ", ".join(known[:_NAMES_MAX])
    return f"{shown} and {rest} more" if rest > 0 else shown


def gathered(findings: Sequence[Finding]) -> list[Finding]:
    """Merge similar findings, so that the others are easy to see. Pure.

    The OK findings of one check become one. So do other findings of one check with the same text
    and remedy, for one cluster or for topics. The merged finding lists their subjects.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in findings:
        fine = one.level is Level.OK
        what, _, name = one.subject.partition(" ")
        kind = what if what == "topic" else f"{what} {name.partition(',')[0]}"
        alike = () if fine else (kind, one.found, one.do)
        key = (one.check, one.level.value, one.place, one.tried, *alike)
        groups.setdefault(key, []).append(one)
    result = []
    for group in groups.values():
        first = group[0]
        subject = listed(dict.fromkeys(one.subject for one in group))
        told = list(dict.fromkeys(one.found for one in group))
        found = told[0] if len(told) == 1 else f"{len(group)} of {len(group)} are fine"
        result.append(
            Finding(first.check, first.level, subject, first.tried, found, first.do, first.place)
        )
    return result


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Number of findings by level, in the order of `Level`."""
    found = {level.value: 0 for level in Level}
    for one in findings:
        found[one.level.value] += 1
    return found
