"""What MirrorMaker 2 itself would translate, for comparison: by offset syncs alone.

As one that starts now and finds its checkpoints: it reads the offset-syncs topic as it is, and
keeps 64 syncs per partition (`sparkmirror.internal_topics.offset_syncs`). Compaction leaves only
the newest sync of a partition in the long run, so one that has been running all along knows more.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparkmirror.control.groups.checkpoints import CheckpointRules
from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.internal_topics.mm2_records import Checkpoint, decode_offset_sync
from sparkmirror.internal_topics.offset_syncs import OffsetSyncStore
from sparkmirror.model import TopicPartition

__all__ = ["mirrormaker_offsets"]


def mirrormaker_offsets(
    rules: CheckpointRules, syncs: TopicFollower, checkpoints: Iterable[Checkpoint]
) -> dict[tuple[str, TopicPartition], int | None]:
    """Target offset per group and remote partition for each checkpoint's upstream offset.

    None where MirrorMaker 2 would write no checkpoint. Raises `MirrorError` when ``syncs`` cannot
    be read.
    """
    store = OffsetSyncStore(must_read_to_end=False)
    source_of: dict[TopicPartition, TopicPartition] = {}
    for key, value in syncs.read():
        sync = decode_offset_sync(key, value)
        if sync is not None:
            store.add(*sync)
            source_of[rules.remote(sync[0])] = sync[0]
    store.finish_reading()
    found: dict[tuple[str, TopicPartition], int | None] = {}
    for one in checkpoints:
        source = source_of.get(one.remote)
        offset = None if source is None else store.translate(source, one.upstream)
        found[one.group, one.remote] = None if offset is None or offset < 0 else offset
    return found
