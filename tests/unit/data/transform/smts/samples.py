"""Random chains of single message transforms, and random chunks of batches of every kind."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.smts import smt_settings, smt_transforms
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.transform.pack import Packed
from sparkmirror.records.header import (
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    max_timestamp_ms,
    split,
)
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import ClusterClient, FlowSettings, TopicSettings

_A, _B = (ClusterClient(alias, ("localhost:1",), "test") for alias in "AB")

NAMES = ("test", "tenant", "tes", "trace-id", "a-name-of-more-than-eight-bytes", "ключ", "b\ufffd")
_BROKEN = (b"\xff\xfe", b"b\xff", b"")
_TIME_MS = 1_764_000_000_000


def flow_of(config: Mapping[str, str]) -> FlowSettings:
    """The flow A->B of a file with these keys of its connector."""
    conf = {key: Entry(key, value) for key, value in config.items()}
    smts = smt_settings(conf, "A->B")
    topics = TopicSettings(smts=smts)
    return FlowSettings(_A, _B, _A, _B, topics=topics, transforms=smt_transforms(smts, conf, {}))


def random_config(rng: random.Random) -> dict[str, str]:
    """Of a chain of one to four SMTs, of which at least one is no RegexRouter."""
    config = {"predicates": "header,other,gone,named"}
    for alias in ("header", "other"):
        config[f"predicates.{alias}.type"] = "HasHeaderKey"
        config[f"predicates.{alias}.name"] = rng.choice(NAMES)
    config["predicates.gone.type"] = "RecordIsTombstone"
    config["predicates.named.type"] = "TopicNameMatches"
    config["predicates.named.pattern"] = r"A\.t.*"
    kinds = [rng.choice(("Filter", "Filter", "DropHeaders", "InsertHeader")) for _ in range(3)]
    kinds = [*kinds[: rng.randint(1, 3)], *(["RegexRouter"] if rng.random() < 0.3 else [])]
    rng.shuffle(kinds)
    config["transforms"] = ",".join(f"s{number}" for number in range(len(kinds)))
    for number, kind in enumerate(kinds):
        key = f"transforms.s{number}"
        config[f"{key}.type"] = kind
        if kind == "RegexRouter":
            config |= {f"{key}.regex": r"A\.(.*)", f"{key}.replacement": "A.$1"}
            continue
        if kind == "DropHeaders":
            config[f"{key}.headers"] = ",".join(rng.sample(NAMES, rng.randint(1, 3)))
        elif kind == "InsertHeader":
            config |= {f"{key}.header": rng.choice(NAMES), f"{key}.value.literal": "null"}
        if rng.random() < 0.9:
            config[f"{key}.predicate"] = rng.choice(("header", "other", "gone", "named"))
            config[f"{key}.negate"] = rng.choice(("true", "false"))
    return config


@dataclass
class Sample:
    """``records``: as they are at the source, with their source offsets."""

    chunk: Chunk
    data: bytes
    records: list[Record]


def random_sample(rng: random.Random, topic: str) -> Sample:
    """Batches of records with and without headers, keys and values; offsets have gaps."""
    offset = first = rng.choice((0, 7, 1 << 40))
    batches: list[bytes] = []
    records: list[Record] = []
    codec = rng.choice((0, 0, 1, 2, 3, 4))
    level = rng.choice(("no", "some", "some", "odd", "many"))
    for _ in range(rng.choice((1, 1, 3, 12))):
        made: list[Record] = []
        tombstones = rng.choice((0.0, 0.3, 1.0))
        for _ in range(rng.choice((1, 2, 40, 300))):
            value = rng.choice((b"", rng.randbytes(rng.choice((3, 60, 300)))))
            made.append(
                Record(
                    offset,
                    rng.choice((-1, _TIME_MS + rng.randint(-5_000, 5_000_000))),
                    rng.choice((None, b"", b"key", rng.randbytes(130))),
                    None if rng.random() < tombstones else value,
                    tuple(_headers(rng, level)),
                )
            )
            # Compaction and aborted transactions leave gaps.
            offset += rng.choice((1, 1, 1, 1, rng.randint(2, 90)))
        attributes, latest = 0, None
        if rng.random() < 0.2:  # the times that count are the broker's
            attributes, latest = LOG_APPEND_TIME_BIT, _TIME_MS + rng.randint(0, 9)
        if rng.random() < 0.2:
            attributes |= TRANSACTIONAL_BIT
        last = None if rng.random() < 0.8 else offset - made[0].offset + 3
        if rng.random() < 0.5:  # as most are: without gaps
            made = [
                Record(made[0].offset + number, one.timestamp, one.key, one.value, one.headers)
                for number, one in enumerate(made)
            ]
            last = None
        batch = encode_batch(
            made,
            codec=rng.choice((0, codec)) if rng.random() < 0.1 else codec,
            attributes=attributes,
            max_timestamp=latest,
            last_offset_delta=last,
        )
        batches.append(batch)
        records += decode_records(memoryview(batch))
        offset = max(offset, made[-1].offset + 1) + rng.choice((0, 0, 5))
    data = b"".join(batches)
    times = [one.timestamp for one in records]
    runs = tuple((one.offset, 1) for one in records)
    chunk = Chunk(
        *(topic, 0, f"A.{topic}", first, offset, len(records), max(times), 0, len(data)), runs=runs
    )
    return Sample(chunk, data, records)


def _headers(rng: random.Random, level: str) -> Iterator[tuple[bytes, bytes | None]]:
    if level == "no":
        return
    most = 70 if level == "many" and rng.random() < 0.05 else rng.choice((0, 1, 1, 2, 5))
    for _ in range(most):
        name = rng.choice(NAMES[:5]).encode()
        if level == "odd" and rng.random() < 0.2:
            name = rng.choice((*(one.encode() for one in NAMES), *_BROKEN))
        yield name, rng.choice((None, b"", b"v", rng.randbytes(90)))


def new_records(parts: Sequence[Packed]) -> list[Record]:
    """The records of new chunks with their source offsets, after checks that a broker makes."""
    found: list[Record] = []
    for one in parts:
        made: list[Record] = []
        for start, end in split(one.records):
            batch = list(decode_records(one.records[start:end]))
            made += batch
            numbers = [record.offset for record in batch]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            # What the target's index of times and its retention go by.
            latest = max(record.timestamp for record in batch)
            assert max_timestamp_ms(one.records[start:end]) == latest
        assert [record.offset for record in made] == list(range(len(made)))
        assert one.sources is not None
        assert one.chunk.record_count == len(made) == len(one.sources)
        assert one.chunk.size == len(one.records)
        assert one.chunk.timestamp_ms == max((record.timestamp for record in made), default=-1)
        span = range(one.chunk.base_offset, one.chunk.next_offset)
        assert all(offset in span for offset in one.sources.tolist())
        found += [
            Record(int(offset), record.timestamp, record.key, record.value, record.headers)
            for offset, record in zip(one.sources, made, strict=True)
        ]
    return found
