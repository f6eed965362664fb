"""What a topic's log holds, read from the broker's own files: transactions leave markers in it.

End offsets count those markers as well, so they cannot say whether every record arrived once.
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

from sparkmirror.records.split import decode_batches

__all__ = ["committed_records"]

_HEADER_BYTES = 61
_LENGTH = struct.Struct(">i")
_CONTROL, _TRANSACTIONAL = 0x20, 0x10
_COMMIT = 1


def committed_records(node: Path, topic: str) -> int:
    """Records of ``topic`` that a `read_committed` consumer sees; ``node``: a broker's log.dir."""
    partitions = [one for one in node.rglob(f"{topic}-*") if one.name.rpartition("-")[0] == topic]
    return sum(_committed(sorted(one.glob("*.log"))) for one in partitions)


def _committed(segments: list[Path]) -> int:
    """Of one partition, whose ``segments`` are in order."""
    settled, open_ones = 0, Counter[int]()
    for path in segments:
        size, position = path.stat().st_size, 0
        with path.open("rb") as file:
            while position + _HEADER_BYTES <= size:
                file.seek(position)
                head = file.read(_HEADER_BYTES)
                length = 12 + _LENGTH.unpack_from(head, 8)[0]
                if length <= 12 or position + length > size:
                    break  # being written
                attributes = head[22]
                (producer_id,) = struct.unpack_from(">q", head, 43)
                (count,) = _LENGTH.unpack_from(head, 57)
                if attributes & _CONTROL:
                    (marker,) = decode_batches(memoryview(head + file.read(length - len(head))))
                    assert marker.key is not None
                    ended = open_ones.pop(producer_id, 0)
                    settled += ended if struct.unpack_from(">h", marker.key, 2)[0] == _COMMIT else 0
                elif attributes & _TRANSACTIONAL:
                    open_ones[producer_id] += count
                else:
                    settled += count
                position += length
    return settled
