"""Where the records of one chunk came from, and where acknowledgements say that they went."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkmirror.internal_topics.run_map import Run, extend_run


@dataclass(slots=True, eq=False)
class ChunkOffsets:
    """Where the records of one chunk came from and where they went.

    ``sources``: runs of source offsets, as (first offset, records), of the chunk's last records.
    ``targets``: (index in the chunk, records, first target offset) of acknowledged batches.
    """

    sources: Sequence[Sequence[int]]
    records: int
    targets: list[tuple[int, int, int]] = field(default_factory=list)

    def acknowledged(self, end: int, records: int, offset: int) -> None:
        """The ``records`` before index ``end`` are at target offset ``offset`` and after.

        ``offset`` is -1 if unknown.
        """
        if offset < 0:
            return
        start = end - records
        if self.targets:  # the usual case: directly after the batch before
            first, count, at = self.targets[-1]
            if (first + count, at + count) == (start, offset):
                self.targets[-1] = (first, count + records, at)
                return
        self.targets.append((start, records, offset))

    @property
    def target_end(self) -> int:
        """Target offset after the chunk's last record, -1 if unknown."""
        start, count, at = max(self.targets, default=(0, 0, 0))
        return at + count if start + count == self.records else -1

    @property
    def source_end(self) -> int:
        """Source offset after the chunk's last record, -1 if unknown."""
        return sum(self.sources[-1]) if self.sources else -1

    def runs(self) -> list[Run]:
        """The runs whose offsets are known on both sides, in source order."""
        found: list[Run] = []
        targets = deque(sorted(self.targets))
        index = self.records - sum(count for _, count in self.sources)
        for first, count in self.sources:
            end = index + count
            while targets and targets[0][0] < end:
                start, size, offset = targets[0]
                low, high = max(index, start), min(end, start + size)
                if low < high:
                    extend_run(found, Run(first + low - index, offset + low - start, high - low))
                if start + size > end:
                    break
                targets.popleft()
            index = end
        return found
