"""Divides the rate of a limit between slots by what each of them needs. Pure, but for `Needs`.

An even division would waste the share of idle slots. So each slot gets what it uses, and the rest
goes to those that had to wait. Current partitions are served before backfill, in whichever slot
they are. Nothing has to be coordinated: a slot that learns of a new division later than the
others reads at its old rate until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkmirror.progress import SlotProgress, ThrottleUse

_FLOOR = 0.01
_HEADROOM = 0.1
# Of the rate: what all slots that do not wait get above their use.
_HEADROOM_MAX = 0.02
_CURRENT_MAX = 0.9
_WAITS_FROM = 0.05
_CHANGE_MIN = 0.02
# A slot reports once a second while it reads or waits.
_SILENT_S = 2.5
_INTERVAL_MS_MIN = 400
# A slot that has not reported by then is not running: Spark lacks cores, for example.
_UNKNOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class Need:
    """What one slot used of a limit, in bytes per second, and which of its partitions waited."""

    current_bytes_s: float = 0.0
    backfill_bytes_s: float = 0.0
    current_waits: bool = False
    backfill_waits: bool = False


def divide(rate: float, needs: Sequence[Need | None]) -> list[int]:
    """Bytes per second for each slot. None: nothing is known of the slot yet.

    Their sum is the rate, and up to 3 % above it if slots do not wait: these get some headroom, and
    it is not taken from the others, because it mostly remains unused.
    """
    count = len(needs)
    if not count:
        return []
    even = rate / count
    known = [Need(even) if need is None else need for need in needs]
    wanted = [
        max(2 * need.current_bytes_s, even) if need.current_waits else need.current_bytes_s
        for need in known
    ]
    waiting = any(need.backfill_waits for need in known)
    current = _fill(rate * (_CURRENT_MAX if waiting else 1.0), wanted)
    left = rate - sum(current)
    wanted = [rate if need.backfill_waits else need.backfill_bytes_s for need in known]
    backfill = _fill(left, wanted)
    left -= sum(backfill)
    headroom = min(_HEADROOM, _HEADROOM_MAX * rate / max(1.0, sum(current) + sum(backfill)))
    shares = []
    for need, now, later in zip(needs, current, backfill, strict=True):
        keeps_up = need is not None and not (need.current_waits or need.backfill_waits)
        above = headroom if keeps_up else 0.0
        share = (now + later) * (1 + above) + left / count
        shares.append(int(min(rate, max(share, _FLOOR * even))))
    return shares


def _fill(amount: float, wanted: Sequence[float]) -> list[float]:
    """Max-min fair shares of ``amount``: nobody gets more than wanted; small wishes are met."""
    shares = [0.0] * len(wanted)
    waiting = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for done, index in enumerate(waiting):
        shares[index] = min(wanted[index], amount / (len(waiting) - done))
        amount -= shares[index]
    return shares


def differ(rate: float, shares: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two divisions of ``rate`` differ by enough to be published."""
    if len(shares) != len(others):
        return True
    return any(
        abs(one - other) > _CHANGE_MIN * rate / 2 or (one > 2 * other and one - other > 1)
        for one, other in zip(shares, others, strict=True)
    )


@dataclass(slots=True)
class _Seen:
    attempt: int
    time_ms: int
    uses: dict[str, ThrottleUse]
    arrived_s: float
    needs: dict[str, Need]


class Needs:
    """What the slots need, by the reports of their use. Times in seconds of any steady clock."""

    def __init__(self) -> None:
        self._slots: dict[int, _Seen] = {}
        self._asked_s: dict[str, float] = {}

    def observe(self, reports: Iterable[SlotProgress], now_s: float) -> None:
        """Take new reports, which arrive at ``now_s``."""
        for report in reports:
            uses = {one.topics: one for one in report.throttles}
            seen = self._slots.get(report.slot)
            if seen is None or report.attempt != seen.attempt:
                needs = {} if seen is None else seen.needs
                self._slots[report.slot] = _Seen(report.attempt, report.time_ms, uses, now_s, needs)
                continue
            seen.arrived_s = now_s
            passed_ms = report.time_ms - seen.time_ms
            if passed_ms < _INTERVAL_MS_MIN:
                continue
            seen.needs = {
                topics: _need(use, seen.uses[topics], passed_ms)
                for topics, use in uses.items()
                if topics in seen.uses and use.current_bytes >= seen.uses[topics].current_bytes
            }
            seen.time_ms, seen.uses = report.time_ms, uses

    def of(self, topics: str, slots: int, now_s: float) -> list[Need | None]:
        """The need of each of ``slots`` slots; None for a slot that has not reported about it yet.

        A slot that has become silent needs nothing, and neither does one that never reports.
        """
        unknown = None if now_s - self._asked_s.setdefault(topics, now_s) <= _UNKNOWN_S else Need()
        found: list[Need | None] = []
        for slot in range(slots):
            seen = self._slots.get(slot)
            if seen is None or topics not in seen.needs:
                found.append(unknown)
            else:
                silent = now_s - seen.arrived_s > _SILENT_S
                found.append(Need() if silent else seen.needs[topics])
        return found


def _need(use: ThrottleUse, before: ThrottleUse, passed_ms: int) -> Need:
    def waits(wait_ms: int) -> bool:
        return wait_ms > _WAITS_FROM * passed_ms

    return Need(
        (use.current_bytes - before.current_bytes) * 1000 / passed_ms,
        max(0, use.backfill_bytes - before.backfill_bytes) * 1000 / passed_ms,
        waits(use.current_wait_ms - before.current_wait_ms),
        waits(use.backfill_wait_ms - before.backfill_wait_ms),
    )
