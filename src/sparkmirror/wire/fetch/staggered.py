"""Several requests for the same partitions wait at a far broker, each for a later record.

A broker gets the next request for a partition one round trip after it sent the last response. A
record that is written meanwhile waits for that request, although the partition has no backlog. So
while records come about as often as round trips end, a channel has **helpers**: connections whose
requests ask for the same partitions from the same offsets. All of them would be answered by the
next record, so each waits for more bytes (``min_bytes``) than the one before: the first record
answers the first request, the second record the second one, and so on.

Bytes are counted from the channel's first response on. `Staggered` knows how many were read and at
which count each request under way is answered. The count ahead is cut into cells, each as long as
a mean batch, and a new request waits for the first cell for which none waits. So it does not matter
which connection a request has, and in which order responses come.

The fetcher skips what was read before: a helper's response begins at the position that the
partition had when its request was sent. This costs bytes, so there is a bound, and there are no
helpers for a backlog, for many partitions or beside a limit. After anything unusual (another
leader, an error, a partition that is held, …) requests of helpers that are under way are **void**:
their responses are not used.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.channels import Channel, Channels
from sparkmirror.wire.fetch.partition_state import FetchState

__all__ = ["WAITING_MAX", "Staggered"]

WAITING_MAX = 8
"""How many requests for the same partitions may wait at a broker, the channel's own included."""
_FAR_S = 0.010
_PARTITIONS_MAX = 256  # each request looks at all of them
_MEMORY_S = 1.0
_BATCHES_MIN = 2.0
# Fewer batches per round trip: most of them find a request waiting anyway.
_BATCHES_PER_TRIP_MIN = 0.5
# Batches do not come evenly.
_SPARE = 1.5
# Of a mean batch, after the beginning of a cell: a batch that is somewhat smaller than the mean
# still ends the wait, and one that is somewhat larger ends no second one.
_INTO_CELL = 0.25
# So responses come no more often than those of a near broker (`pacing`): each costs a row in Spark.
_APART_S = 0.004
# A batch that is much smaller ends no wait: it waits for a later one, or for this time.
_WAIT_TRIPS = 1.0
_ALONE_S = 60.0


@dataclass(slots=True)
class _Line:
    """Requests for the partitions of one channel.

    ``read``: bytes so far. ``ends``: the count at which each request under way is answered.
    ``batches``, ``size``: what was read lately, batches and their bytes, weighted by their age.
    """

    read: int = 0
    ends: dict[Channel, int] = field(default_factory=dict)
    batches: float = 0.0
    size: float = 0.0
    at: float = 0.0

    def age(self, now: float) -> None:
        """Let what was read before count less."""
        kept = math.exp(-max(0.0, now - self.at) / _MEMORY_S)
        self.batches, self.size, self.at = self.batches * kept, self.size * kept, now


class Staggered:
    """Decides how many requests of one fetcher wait for the same partitions, and for how much.

    ``reread_bytes``: how many bytes per second and broker may be read again; 0: no helpers.
    """

    def __init__(self, channels: Channels, settings: FetchSettings, reread_bytes: int) -> None:
        self._channels = channels
        self._possible = reread_bytes > 0 and settings.fetch_min_bytes <= 1
        self._reread_bytes = reread_bytes
        self._lines: dict[Channel, _Line] = {}
        self._alone_until: dict[int, float] = {}
        self.reread = 0
        """Bytes of records in responses that had been read before."""

    # -- what is asked for -----------------------------------------------------------------

    def missing(self, main: Channel, now: float) -> int:
        """How many more requests should wait for the partitions of channel ``main``."""
        line = self._line(main)
        if line is None:
            return 0
        waiting = sum(end > line.read for end in line.ends.values())
        return max(0, self._plan(main, line, now)[0] - waiting)

    def helpers(self, main: Channel) -> list[Channel]:
        """Channels to the same broker that may help ``main``."""
        return self._channels.helpers(main[0])

    def partitions(
        self,
        main: Channel,
        states: Collection[FetchState],
        left_out: Collection[object],
        now: float,
    ) -> list[FetchState]:
        """Those of ``states``, which are in flight on ``main``, that a helper may ask for."""
        if len(states) > _PARTITIONS_MAX:
            return []
        found = [
            state
            for state in states
            if state.halt is None
            and not state.held
            and state.retry_at <= now
            and (state.node, state.channel) == main
            and state.tp not in left_out
        ]
        behind = any(state.cut_short or state.bytes_max for state in found)
        return [] if behind else found

    def waits(
        self, main: Channel, channel: Channel, settings: FetchSettings, now: float
    ) -> FetchSettings:
        """The settings of the next request on ``channel`` for the partitions of ``main``."""
        line = self._line(main)
        if line is None or settings.fetch_min_bytes > 1:
            return settings
        line.ends.pop(channel, None)
        wanted, spacing = self._plan(main, line, now)
        if wanted < 2:
            line.ends[channel] = line.read + 1
            return settings
        taken = {int((end - line.read - 1) // spacing) for end in line.ends.values()}
        cell = next(number for number in range(len(taken) + 1) if number not in taken)
        batch, trip_s = line.size / line.batches, self._channels.round_trip_s(main[0])
        least = max(2, round(cell * spacing + _INTO_CELL * batch)) if cell else 1
        line.ends[channel] = line.read + least
        if channel != main:
            # Whatever comes at once would answer all of them, and the channel's own reads it all.
            expected = least + round(trip_s * line.size / _MEMORY_S)
            most = max(2 * expected, self._reread_bytes // WAITING_MAX)
            settings = replace(settings, fetch_max_bytes=min(settings.fetch_max_bytes, most))
        if not cell:
            return settings
        trip_ms = math.ceil(1000 * _WAIT_TRIPS * trip_s)
        return replace(
            settings,
            fetch_min_bytes=min(least, settings.fetch_max_bytes // 2),
            fetch_max_wait_ms=min(settings.fetch_max_wait_ms, trip_ms),
        )

    def _plan(self, main: Channel, line: _Line, now: float) -> tuple[int, float]:
        """How many requests wait, and the length of a cell in bytes."""
        line.age(now)
        if line.batches < _BATCHES_MIN or now < self._alone_until.get(main[0], 0.0):
            return 1, 1.0
        batch, bytes_s = line.size / line.batches, line.size / _MEMORY_S
        trip_s = self._channels.round_trip_s(main[0])
        per_trip = trip_s * line.batches / _MEMORY_S
        # The channels of a broker have equal parts of what may be read again.
        lines = sum(
            one.batches >= _BATCHES_MIN for (node, _), one in self._lines.items() if node == main[0]
        )
        wanted = min(
            WAITING_MAX,
            1 + math.ceil(_SPARE * per_trip),
            1 + int(self._reread_bytes / lines / bytes_s),
            int(trip_s / _APART_S),
        )
        if per_trip < _BATCHES_PER_TRIP_MIN or wanted < 2:
            return 1, 1.0
        return wanted, batch * max(1.0, _SPARE * per_trip / wanted)

    def _line(self, main: Channel) -> _Line | None:
        """None if the broker is near."""
        if not self._possible or self._channels.round_trip_s(main[0]) < _FAR_S:
            return None
        return self._lines.setdefault(main, _Line())

    def counts(self, main: Channel) -> bool:
        """Whether what is read on ``main`` has to be noted."""
        return self._line(main) is not None

    # -- what happens ----------------------------------------------------------------------

    def answered(self, main: Channel, channel: Channel) -> None:
        """Note that the request on ``channel`` is no longer under way."""
        line = self._lines.get(main)
        if line is not None:
            line.ends.pop(channel, None)

    def note_read(self, main: Channel, batches: int, size: int, now: float) -> None:
        """Note that a response had ``size`` new bytes, among them ``batches`` of records."""
        line = self._line(main)
        if line is not None:
            line.age(now)
            line.read += size
            line.batches += batches
            line.size += size

    def void(self) -> None:
        """Forget what is under way."""
        for line in self._lines.values():
            line.ends.clear()

    def rest(self, node: int, now: float) -> None:
        """Have no helpers at ``node`` for a while: a connection failed, or a quota slows us."""
        self._alone_until[node] = now + _ALONE_S
