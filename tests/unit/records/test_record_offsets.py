"""Where records start: two walks with one result, and what they make of damage."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.records import record_offsets
from sparkmirror.records.header import HEADER_BYTES
from sparkmirror.records.record_offsets import IrregularRecordError, record_starts
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.varint import varint

# Lengths of one, two and three bytes, with and without neighbours of the same size.
sizes = st.lists(
    st.sampled_from([0, 0, 1, 2, 50, 55, 56, 57, 58, 90, 8_179, 8_185, 9_000]), min_size=1
)


def laid_out(batches: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All bytes; begin, end and record count of each batch. ``batches``: sizes of their values."""
    data, begins, ends = b"", [], []
    for values in batches:
        records = [Record(n, 1_000, None, bytes(size)) for n, size in enumerate(values)]
        begins.append(len(data) + HEADER_BYTES)
        data += encode_batch(records)
        ends.append(len(data))
    return (
        np.frombuffer(data, np.uint8),
        np.array(begins, np.int64),
        np.array(ends, np.int64),
        np.array([len(values) for values in batches], np.int64),
    )


def expected(batches: list[list[int]], begins: np.ndarray) -> list[int]:
    found: list[int] = []
    for values, begin in zip(batches, begins.tolist(), strict=True):
        at = begin
        for n, size in enumerate(values):
            found.append(at)
            body = 1 + 1 + len(varint(n)) + 1 + len(varint(size)) + size + 1
            at += len(varint(body)) + body
    return found


def walk(together: bool, *layout: np.ndarray) -> list[int] | None:
    """The starts; None when something is odd."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_offsets, "_STEP_RECORDS", 0 if together else 1 << 40)
        try:
            return record_starts(*layout).tolist()
        except IrregularRecordError:
            return None


@pytest.mark.parametrize("together", [True, False])
@settings(deadline=None)
@given(batches=st.lists(sizes, min_size=1, max_size=8))
def test_all_starts_are_found(together: bool, batches: list[list[int]]) -> None:
    layout = laid_out(batches)
    assert walk(together, *layout) == expected(batches, layout[1])


@pytest.mark.parametrize("together", [True, False])
def test_a_batch_that_does_not_end_where_it_must_is_odd(together: bool) -> None:
    flat, begins, ends, counts = laid_out([[5, 5, 5], [7] * 40, [60]])
    for batch in range(3):
        one = np.arange(3) == batch
        assert walk(together, flat, begins, ends + one, counts) is None
        assert walk(together, flat, begins, ends, counts + one) is None
    assert walk(together, flat, begins, ends, counts - (np.arange(3) == 1)) is None


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), batches=st.lists(sizes, min_size=1, max_size=4))
def test_damage_is_odd_or_taken_alike(seed: int, batches: list[list[int]]) -> None:
    """What is no length ends both walks; what could be one leads both to the same place."""
    rng = Random(seed)
    flat, begins, ends, counts = laid_out(batches)
    damaged = flat.copy()
    for _ in range(rng.randrange(1, 4)):
        damaged[rng.randrange(len(damaged))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    together, singly = (walk(one, damaged, begins, ends, counts) for one in (True, False))
    assert together is None or singly is None or together == singly
    for found in (together, singly):
        assert found is None or len(found) == int(counts.sum())


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    values=st.sampled_from([(1, 40), (60, 120), (900, 1_100), (0, 9_000), (200, 200)]),
    zeros=st.sampled_from([0.0, 0.001, 0.2, 1.0]),
)
def test_a_guess_is_right_or_none(seed: int, values: tuple[int, int], zeros: float) -> None:
    """Many records in a batch, with keys and headers, and with zeros in their bytes."""
    rng = Random(seed)

    def content(size: int) -> bytes:
        return bytes(
            0 if rng.random() < zeros else rng.randrange(256) for _ in range(min(size, 200))
        )

    flat, begins, ends, records = b"", [], [], []
    for first in (0, 300):
        made = [
            Record(n, 1_000 + rng.randrange(3), rng.choice([None, content(7)]),
                   (content(rng.randint(*values)) * 45)[: rng.randint(*values)],
                   rng.choice([(), ((b"h", content(3)),)]))
            for n in range(first, first + rng.randrange(40, 160))
        ]  # fmt: skip
        begins.append(len(flat) + HEADER_BYTES)
        flat += encode_batch(made)
        ends.append(len(flat))
        records.append(len(made))
    layout = (
        np.frombuffer(flat, np.uint8),
        *(np.array(each, np.int64) for each in (begins, ends, records)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_offsets, "_guessed", lambda body, count: None)
        by_steps = walk(False, *layout)
    assert walk(False, *layout) == by_steps
    assert by_steps is not None
    # Damage is found by both, or by none.
    damaged = layout[0].copy()
    damaged[rng.randrange(begins[0], len(damaged))] = rng.randrange(256)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_offsets, "_guessed", lambda body, count: None)
        by_steps = walk(False, damaged, *layout[1:])
    assert walk(False, damaged, *layout[1:]) == by_steps


def test_usual_records_are_found_by_a_guess() -> None:
    texts = [b"V" * (900 + n % 50) for n in range(200)]
    data = encode_batch([Record(n, 1_000, None, text) for n, text in enumerate(texts)])
    body = np.frombuffer(data, np.uint8)[HEADER_BYTES:]
    found = record_offsets._guessed(body, len(texts))
    assert found is not None
    assert found.tolist() == expected([[len(one) for one in texts]], np.zeros(1, np.int64))
    assert record_offsets._guessed(body, len(texts) - 1) is None
    assert record_offsets._guessed(body[:-1], len(texts)) is None


def test_long_records_of_a_few_sizes_are_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess reads all their bytes, and looking for a run of one size all their first bytes."""
    guesses, runs = [], []
    look = record_offsets._run

    def spy(*arguments: int) -> int:
        runs.append(look(*arguments))  # type: ignore[arg-type]
        return runs[-1]

    monkeypatch.setattr(record_offsets, "_guessed", lambda body, count: guesses.append(count))
    monkeypatch.setattr(record_offsets, "_run", spy)
    texts = [b"V" * (900 + n // 6 % 3) for n in range(2_000)]
    data = encode_batch([Record(n, 1_000, None, text) for n, text in enumerate(texts)])
    flat = np.frombuffer(data, np.uint8)
    layout = (np.array([one], np.int64) for one in (HEADER_BYTES, len(data), len(texts)))
    found = record_offsets.record_starts(flat, *layout)
    sizes = np.diff([*found.tolist(), len(data)])
    assert [size - 900 > 0 for size in sizes] == [True] * 2_000
    assert flat[found + 2].tolist() == [0] * 2_000  # attributes, behind a length of two bytes
    assert not guesses
    assert len(runs) <= 3


def test_no_batches_have_no_records() -> None:
    none = np.zeros(0, np.int64)
    assert record_starts(np.zeros(0, np.uint8), none, none, none).tolist() == []
