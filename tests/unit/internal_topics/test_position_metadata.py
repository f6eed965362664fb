"""The texts that positions carry: those of earlier releases are read, and ours are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    decode_metadata,
    encode_metadata,
)

# As earlier releases wrote them, byte for byte.
TEXTS = {
    "": PositionMetadata(),
    '{"source_topic_id": "id"}': PositionMetadata(Mark(topic_id="id")),
    '{"seeded": true, "source_topic_id": "id"}': PositionMetadata(
        Mark(topic_id="id"), TargetMark(seeded=True)
    ),
    # At-least-once: where the target's log ended, and who writes there next.
    '{"target_offset": 40, "producer_id": 7, "target_cluster_id": "b", "target_topic_id": "r", '
    '"target_leader_epoch": 3, "target_epoch_offset": 39, "source_begin": 0, "target_cut": 30, '
    '"target_has": [5, 9], "source_topic_id": "id", "source_cluster_id": "a", '
    '"source_leader_epoch": 2}': PositionMetadata(
        Mark("a", "id", 2), TargetMark("b", "r", 3, 39, 0, False, 30, 5, 9), 40, 7
    ),
    # Exactly-once: whose records stand before the position.
    '{"producer_id": 7, "producer_epoch": 1, "producer_records": 12, "target_topic_id": "r", '
    '"target_offset": 40, "source_cluster_id": "a"}': PositionMetadata(
        Mark("a"), TargetMark(topic_id="r"), 40, 7, 1, 12
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_stay_as_they_are(text: str) -> None:
    assert encode_metadata(TEXTS[text]) == text
    assert decode_metadata(text) == TEXTS[text]


_ids, _numbers = st.text(max_size=8), st.integers(-1, 99)


@given(
    st.builds(
        PositionMetadata,
        st.builds(Mark, _ids, _ids, _numbers),
        target_end=_numbers,
        producer_id=_numbers,
        producer_epoch=_numbers,
        producer_records=_numbers,
    )
)
def test_metadata_comes_back_as_far_as_it_makes_sense(metadata: PositionMetadata) -> None:
    back = decode_metadata(encode_metadata(metadata))
    assert (back.source, back.target_end) == (metadata.source, metadata.target_end)
    assert back.written == metadata.written
    if metadata.written is None:
        assert back.producer_id == (metadata.producer_id if metadata.target_end >= 0 else -1)


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "null", '{"target_offset":"far"}', "7", "[" * 100_000]
)
def test_metadata_of_others_says_nothing(text: str) -> None:
    assert decode_metadata(text) == PositionMetadata()
