"""Selects the records of responses, and never passes damage: it is fetched again at its place."""

from __future__ import annotations

import logging

from sparkmirror.errors import BatchError, CorruptBatch
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.selection import Selection, SelectRules, select
from sparkmirror.wire.fetch.fetcher import FetchedPartition, Fetcher

log = logging.getLogger(__name__)

_CORRUPT_RETRY_S = 1.0
_CORRUPT_TRIES = 3
# How often in a row a response may end past the high watermark that it states.
_AHEAD_TRIES = 4
_DAMAGED_RETRY_S, _DAMAGED_RETRY_S_MAX = 5.0, 60.0


class IntactRecords:
    """What a slot may mirror of the responses to ``fetcher``. One owner, no threads."""

    def __init__(self, fetcher: Fetcher, rules: SelectRules) -> None:
        self._fetcher = fetcher
        self._rules = rules
        self._corrupt: dict[TopicPartition, int] = {}
        self._ahead: dict[TopicPartition, int] = {}

    def select(self, part: FetchedPartition, end: int | None) -> Selection | None:
        """The records of ``part`` before offset ``end``; None if it must be fetched again."""
        try:
            chosen = select(
                part.records, part.fetch_offset, part.aborted, self._rules, end_offset=end
            )
            if chosen.next_offset > part.high_watermark >= 0:
                # A broker reads its high watermark before it reads the log: the next response
                # shows whether it has moved. But a damaged base offset looks the same, since no
                # checksum covers it, and it would move the position past records that were never
                # mirrored.
                ahead = self._ahead[part.tp] = self._ahead.get(part.tp, 0) + 1
                if ahead < _AHEAD_TRIES:
                    self._fetcher.retry_later(part.tp, 0.0)  # responses under way show the same
                    return None
                raise CorruptBatch(
                    f"The batches from offset {part.fetch_offset} on end at "
                    f"{chosen.next_offset - 1}, but the log ends at {part.high_watermark - 1}.",
                )
        except BatchError as error:
            self._note_corrupt(part.tp, error)
            return None
        self._corrupt.pop(part.tp, None)
        self._ahead.pop(part.tp, None)
        if chosen.cut_bytes_needed:
            self._fetcher.need_bytes(part.tp, chosen.cut_bytes_needed)
        return chosen

    def _note_corrupt(self, tp: TopicPartition, error: BatchError) -> None:
        """Fetch again: that repairs damage in transit, but not damage in the log."""
        tries = self._corrupt[tp] = self._corrupt.get(tp, 0) + 1
        self._fetcher.errors[error.code] = self._fetcher.errors.get(error.code, 0) + 1
        log.warning("%s: %s (try %d)", tp, error, tries)
        if tries >= _CORRUPT_TRIES:
            # Another replica may be intact, or the log is repaired.
            reason = f"{tp} at the source: {error}"
            self._fetcher.halt(tp, Halt(error.code, reason, retriable=True))
            pause_s = _DAMAGED_RETRY_S * 2 ** min(tries - _CORRUPT_TRIES, 10)
            self._fetcher.retry_later(tp, min(_DAMAGED_RETRY_S_MAX, pause_s))
        else:
            self._fetcher.retry_later(tp, _CORRUPT_RETRY_S)
