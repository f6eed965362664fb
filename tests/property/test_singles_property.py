"""Joining batches of one record at once gives what the general way gives, whatever comes."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.errors import BatchError
from sparkmirror.records import selection as selecting
from sparkmirror.records.header import HEADER_BYTES
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.selection import AbortedTransaction, Selection, SelectRules, select
from sparkmirror.records.single_record_batches import SINGLES_MAX, read_singles

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

sizes = st.one_of(st.integers(0, 200), st.sampled_from([3_900, 4_030, 4_096, 9_000]))
steps_ms = st.one_of(st.integers(0, 70), st.sampled_from([-1, 64, 8_192, 1 << 40]))
odd_batches = st.fixed_dictionaries(
    {},
    optional={
        "attributes": st.sampled_from([LOG_APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON]),
        "codec": st.integers(0, 4),
        "base_timestamp": st.just(77),
        "last_offset_delta": st.integers(0, 3),
        "leader_epoch": st.integers(0, 9),
    },
)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Mostly plain batches of one record at rising offsets; some that are not."""
    offset, time_ms = draw(st.integers(0, 1 << 40)), 1_700_000_000_000
    answer = b""
    for _ in range(draw(st.integers(1, 12))):
        value = b"v" * draw(sizes)
        plain = draw(st.integers(0, 19)) > 0
        count = 1 if plain else draw(st.integers(1, 3))
        fields = {} if plain else draw(odd_batches)
        rows = [Record(offset + n, time_ms, None, value, ()) for n in range(count)]
        fields["base_offset"] = offset
        answer += encode_batch(rows, **fields)
        offset += count + (0 if draw(st.integers(0, 9)) else draw(st.integers(-1, 3)))
        time_ms += draw(steps_ms)
    return answer


def either_way(
    answer: bytes, fetch_offset: int, end_offset: int | None, rules: SelectRules
) -> list[Selection | str]:
    found: list[Selection | str] = []
    for most in (SINGLES_MAX, 0):
        buffer = memoryview(bytearray(answer))
        with patch.object(selecting, "SINGLES_MAX", most):
            try:
                found.append(select(buffer, fetch_offset, (), rules, end_offset=end_offset))
            except BatchError as error:
                found.append(str(error))
    return found


@given(
    answer=responses(),
    before=st.integers(-2, 3),
    end=st.one_of(st.none(), st.integers(-1, 14)),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 1 << 16), st.integers(1, 255))),
    cut=st.integers(0, 90),
    join_bytes=st.sampled_from([256 * 1024, 300]),
    check_crcs=st.booleans(),
)
def test_as_the_general_way(
    answer: bytes,
    before: int,
    end: int | None,
    damage: tuple[int, int] | None,
    cut: int,
    join_bytes: int,
    check_crcs: bool,
) -> None:
    first = int.from_bytes(answer[:8], "big")
    changed = bytearray(answer)
    if damage is not None:
        at, bits = damage
        changed[at % len(changed)] ^= bits
    whole = bytes(changed) if cut > 60 else bytes(changed)[: len(changed) - cut]
    rules = SelectRules(check_crcs=check_crcs, join_bytes=join_bytes)
    quick, general = either_way(whole, first - before, None if end is None else first + end, rules)
    assert quick == general


def single(offset: int, **fields: int) -> bytes:
    return encode_batch([Record(offset, 1_000 + offset, b"k", b"v" * 50, ())], **fields)


def read(answer: bytes, count: int) -> bool:
    size = len(answer) // count
    starts = [size * n for n in range(count + 1)]
    return (
        read_singles(
            memoryview(answer),
            starts,
            first_offset=5,
            end_offset=100,
            size_max=4_096,
            check_crcs=True,
        )
        is not None
    )


def test_the_short_cut_is_taken_and_only_for_the_plainest() -> None:
    assert read(b"".join(single(n) for n in range(5, 9)), 4)
    assert read(single(5) + single(7), 2), "with a gap"
    odd = [single(4), single(5, attributes=TRANSACTIONAL), single(5, codec=3), single(100)]
    odd.append(single(5)[:-1] + b"x")
    odd.append(single(5, attributes=LOG_APPEND_TIME))
    for batch in odd:
        assert len(batch) >= HEADER_BYTES
        assert not read(batch, 1)
    assert not read(single(6) + single(5), 2), "back"


def test_aborted_transactions_are_left_to_the_general_way() -> None:
    answer = memoryview(single(5, attributes=TRANSACTIONAL, producer_id=9) + single(6))
    assert select(answer, 5, [AbortedTransaction(9, 5)], SelectRules()).runs == [(6, 1)]
