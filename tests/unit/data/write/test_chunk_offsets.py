"""Where the records of a chunk went, of any acknowledgements in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.internal_topics.run_map import Run


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=10),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), min_size=1, max_size=10
    ),
    st.integers(0, 8),
    st.randoms(),
)
def test_runs_are_what_both_sides_know(
    gaps: list[tuple[int, int]],
    batches: list[tuple[int, int, bool]],
    forgotten: int,
    random: object,
) -> None:
    """``gaps``: source offsets skipped, records; ``batches``: foreign records, records, known."""
    sources: list[tuple[int, int]] = []
    source_of: list[int] = []
    offset = 100
    for skipped, count in gaps:
        offset += skipped
        sources.append((offset, count))
        source_of += range(offset, offset + count)
        offset += count
    records = len(source_of)
    told = sources[min(forgotten, len(sources) - 1) :]
    offsets = ChunkOffsets(told, records)
    known_from = records - sum(count for _, count in told)
    target_of: dict[int, int] = {}
    acks, index, target = [], 0, 7
    for foreign, count, known in batches:
        size = min(count, records - index)
        if not size:
            break
        target += foreign
        acks.append((index + size, size, target if known else -1))
        if known:
            target_of |= {index + i: target + i for i in range(size)}
        index, target = index + size, target + size
    random.shuffle(acks)  # type: ignore[attr-defined]
    for ack in acks:
        offsets.acknowledged(*ack)
    found = {run.source + i: run.target + i for run in offsets.runs() for i in range(run.length)}
    wanted = {source_of[i]: target_of[i] for i in target_of if i >= known_from}
    assert found == wanted


def test_the_second_half_of_a_batch_that_was_cut_is_known() -> None:
    offsets = ChunkOffsets([(10, 8)], 8)
    offsets.acknowledged(8, 3, 55)
    assert offsets.runs() == [Run(15, 55, 3)]
