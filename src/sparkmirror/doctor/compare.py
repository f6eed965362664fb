"""Compares source topics with their remote topics: what would be rejected, lost, or changed.

All functions are pure: facts in, findings out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkmirror.control.topics.replicas import said_of_brokers, too_few_brokers
from sparkmirror.doctor.facts import Configs, Pair
from sparkmirror.doctor.finding import Finding, Level, gathered, ok
from sparkmirror.model import MirrorMode, Partitioner, TopicPartition
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.views import NewTopic

ONE_REPLICA = "one replica only"
"""Start of the text of a finding that is only advice."""

_COPY_SECONDS_NOTED = 60.0
_PER_DAY = 86_400.0


def compare_topics(flow: FlowSettings, pairs: Sequence[Pair], brokers: int) -> list[Finding]:
    """Check partition counts, replication, message sizes and configs of all topics."""
    if not pairs:
        return []
    checks: dict[str, tuple[str, Callable[[Pair], Iterable[tuple[Level, str, str]]]]] = {
        "partitions": ("compare partition counts", lambda pair: _partitions(flow, pair)),
        "replication": (
            "compare replication.factor and min.insync.replicas with the brokers there are",
            lambda pair: _replication(flow, pair, brokers),
        ),
        "message-size": (
            "compare max.message.bytes of source and target, and max.request.size",
            lambda pair: _message_size(flow, pair),
        ),
        "settings": (
            "compare cleanup.policy, compression.type and message.timestamp.type",
            _settings,
        ),
    }
    findings: list[Finding] = []
    for check, (tried, judge) in checks.items():
        found = [
            Finding(check, level, f"topic {pair.remote}", tried, what, do)
            for pair in pairs
            for level, what, do in judge(pair)
        ]
        fine = ok(check, f"{len(pairs)} topics", tried, "no problem found")
        findings += gathered(found) or [fine]
    return findings


def _partitions(flow: FlowSettings, pair: Pair) -> Iterable[tuple[Level, str, str]]:
    there, here = pair.partitions, pair.source.partitions
    told = f"the target topic has {_count(there, 'partition')}, the source has {here}"
    by_key = flow.mode is MirrorMode.MM1 and flow.records.partitioner is not Partitioner.NUMBER
    if there < here and flow.mode is MirrorMode.MM1 and not by_key:
        do = f"Raise it to {here} (kafka-topics.sh --alter), or leave out --keep.partitions."
        yield Level.FAIL, f"{told}: records cannot keep their partition numbers", do
    elif there != here and by_key:
        do = f"With --keep.partitions raise it to {here} (kafka-topics.sh --alter)." * (
            there < here
        )
        yield Level.WARN, f"{told}: records go to partitions by key", do
    elif there < here:
        do = f"Raise it to {here} before that, if other producers partition this topic by key."
        yield Level.WARN, f"{told}: the mirror will raise it when it starts", do
    elif there > here:
        do = "Keep it so only if no producer partitions by key, or recreate the topic."
        yield Level.WARN, f"{told}: producers that move will spread keys differently", do


def _replication(flow: FlowSettings, pair: Pair, brokers: int) -> Iterable[tuple[Level, str, str]]:
    factor = pair.replication
    start = f"Start the brokers that are down, set replication.factor to {brokers} or less, or"
    live = f"replication.factor is {factor}, the target has {_count(brokers, 'live broker')}"
    if pair.short is not None and factor > brokers:
        yield Level.FAIL, f"{live}{said_of_brokers(pair.short)}", f"{start} add brokers."
    elif pair.short is not None:
        new = NewTopic(pair.remote, pair.partitions, factor)
        told = too_few_brokers(flow.target.alias, new, "replication.factor", brokers, pair.short)
        yield Level.FAIL, told.what.removesuffix("."), told.do
    elif factor > brokers:
        if not pair.present and not pair.taken:
            found = f"{live}, and whether it takes more could not be asked"
            yield Level.FAIL, found, f"{start} repair what check create reports."
        elif not pair.present:
            yield (
                Level.WARN,
                f"replication.factor is {factor}, {_count(brokers, 'broker')} respond",
                "Bring the missing brokers back: the topic gets replicas on them, too.",
            )
        else:
            yield (
                Level.WARN,
                f"the topic has {factor} replicas, {_count(brokers, 'broker')} respond",
                "Bring the missing brokers back.",
            )
    elif factor == 1 and brokers >= 3:
        yield (
            Level.WARN,
            f"{ONE_REPLICA}, on a target of {brokers} brokers",
            "Set replication.factor=3: with one replica, a broker that dies loses the data.",
        )
    insync = _number(pair.target_configs, "min.insync.replicas")
    if insync is None or insync <= (have := min(factor, brokers) if factor > 0 else brokers):
        return
    if min(insync, factor) > have:  # too few replicas are up, for brokers of any version
        yield (
            Level.FAIL,
            f"min.insync.replicas={insync}, but there can be {_count(have, 'replica')} in sync: "
            "every write with acks=all is rejected",
            f"Bring the missing brokers back, or set min.insync.replicas to {max(1, have - 1)}.",
        )
        return
    yield (
        Level.WARN,
        f"min.insync.replicas={insync} with {_count(have, 'replica')}: brokers from Kafka 3.7 on "
        f"treat it as {have}, older ones reject every write with acks=all",
        f"Set min.insync.replicas of the target topic to {max(1, have - 1)}, or raise its "
        "replication factor.",
    )


def _message_size(flow: FlowSettings, pair: Pair) -> Iterable[tuple[Level, str, str]]:
    source = _number(pair.source_configs, "max.message.bytes")
    target = _number(pair.target_configs, "max.message.bytes")
    if source is None:
        return
    if target is not None and target < source:
        yield (
            Level.WARN,
            f"max.message.bytes is {target} on the target and {source} on the source: a larger "
            "batch stops its partition",
            f"Set max.message.bytes={source} on the target topic "
            "(kafka-configs.sh --alter --add-config), or message.max.bytes on its brokers.",
        )
    limit = flow.produce.request_bytes_max
    if limit < source:
        yield (
            Level.WARN,
            f"max.request.size of the mirror's producer is {limit}, max.message.bytes of the "
            f"source topic {source}",
            f"Set producer.max.request.size={source} or more.",
        )


def _settings(pair: Pair) -> Iterable[tuple[Level, str, str]]:
    source, target = pair.source_configs, pair.target_configs
    theirs, ours = _text(target, "cleanup.policy"), _text(source, "cleanup.policy")
    if theirs and ours and set(theirs.split(",")) != set(ours.split(",")):
        yield (
            Level.WARN,
            f"cleanup.policy={theirs} on the target, {ours} on the source",
            f"Set cleanup.policy={ours} on the target topic: a compacted topic refuses records "
            "without a key and drops older ones.",
        )
    codec = _text(target, "compression.type")
    if codec not in ("", "producer") and codec != _text(source, "compression.type"):
        yield (
            Level.WARN,
            f"compression.type={codec} on the target: its brokers compress every batch again",
            "Set compression.type=producer on the target topic to keep the source's batches.",
        )
    if (
        _text(target, "message.timestamp.type")
        == "LogAppendTime"
        != _text(source, "message.timestamp.type")
    ):
        yield (
            Level.WARN,
            "message.timestamp.type=LogAppendTime on the target: it sets its own timestamps",
            "Set message.timestamp.type=CreateTime on the target topic to keep the source's.",
        )


# -- timestamps and retention ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """Timestamps in one topic (epoch ms); None if unknown.

    ``oldest_ms``: of the oldest record that is still to be copied. ``newest_ms``: the largest
    timestamp.
    """

    oldest_ms: int | None = None
    newest_ms: int | None = None


def judge_timestamps(
    pairs: Iterable[Pair], times: Mapping[str, CopyTimes], now_ms: float
) -> list[Finding]:
    """Check whether the target's limits for record timestamps reject records of the source."""
    check, tried = "timestamps", "compare record timestamps with the target's limits"
    found = []
    known = 0
    for pair in pairs:
        time, configs = times.get(pair.topic, CopyTimes()), pair.target_configs
        known += 1
        if _text(configs, "message.timestamp.type") == "LogAppendTime":
            continue
        before = _number(configs, "message.timestamp.before.max.ms")
        after = _number(configs, "message.timestamp.after.max.ms")
        old = None if time.oldest_ms is None else now_ms - time.oldest_ms
        if before is not None and old is not None and old > before:
            found.append(
                _pair_finding(
                    check, pair, tried,
                    f"the first record to copy is {_span(old / 1000)} old, the target takes "
                    f"records of at most {_span(before / 1000)}",
                    "Remove message.timestamp.before.max.ms from the target topic.",
                )
            )  # fmt: skip
        new = None if time.newest_ms is None else time.newest_ms - now_ms
        if after is not None and new is not None and new > after:
            found.append(
                _pair_finding(
                    check, pair, tried,
                    f"a record is {_span(new / 1000)} in the future, the target takes "
                    f"at most {_span(after / 1000)}",
                    "Raise message.timestamp.after.max.ms of the target topic, and check the "
                    "clock of the producer.",
                )
            )  # fmt: skip
    if found:
        return gathered(found)
    return [ok(check, f"{known} topics", tried, "none is refused")] if known else []


def _pair_finding(check: str, pair: Pair, tried: str, found: str, do: str) -> Finding:
    return Finding(check, Level.FAIL, f"topic {pair.remote}", tried, found, do)


def judge_retention(
    pairs: Iterable[Pair],
    times: Mapping[str, CopyTimes],
    bytes_left: Mapping[TopicPartition, int] | None,
    *,
    rate_bytes_s: float,
    now_ms: float,
) -> list[Finding]:
    """Check whether records expire before they are copied, or soon after.

    ``bytes_left``: bytes still to be copied, per partition; None if unknown.
    """
    check = "retention"
    total = sum((bytes_left or {}).values())
    copy_s = total / rate_bytes_s
    tried = f"compare retention.ms with the time to copy at {rate_bytes_s / 1e6:g} MB/s"
    said = f"copying {total / 1e6:,.1f} MB takes about {_span(copy_s)}"
    found = []
    known = 0
    for pair in pairs:
        known += 1
        oldest_ms = times.get(pair.topic, CopyTimes()).oldest_ms
        if oldest_ms is None:
            continue
        age_s = max(0.0, (now_ms - oldest_ms) / 1000)
        subject = f"topic {pair.topic}"
        keeps_s = _retention_s(pair.source_configs)
        first = f"the first record to copy is {_span(age_s)} old"
        if keeps_s is not None and copy_s > keeps_s - age_s and copy_s > _COPY_SECONDS_NOTED:
            never = copy_s > keeps_s
            found.append(
                Finding(
                    check,
                    Level.FAIL if never else Level.WARN,
                    subject,
                    tried,
                    f"{first}, the source keeps records {_span(keeps_s)}, and {said}: some expire "
                    "before they are copied",
                    "Raise retention.ms of the source topic until the copy is done, or copy "
                    "faster (tasks.max, a machine near the target).",
                )
            )
        remote_s = _retention_s(pair.target_configs)
        if remote_s is not None and age_s > remote_s:
            found.append(
                Finding(
                    check, Level.WARN, f"topic {pair.remote}", tried,
                    f"{first}, the target keeps {_span(remote_s)}: older records are deleted "
                    "soon after they arrive",
                    "Raise retention.ms of the target topic.",
                )
            )  # fmt: skip
    if not known:
        return []
    if bytes_left is None:
        what = "the sizes of partitions are not available"
        do = "Grant Describe on the Cluster to see how long the copy takes."
        found.append(Finding(check, Level.SKIP, f"{known} topics", tried, what, do))
    return gathered(found) or [ok(check, f"{known} topics", tried, said)]


def _retention_s(configs: Configs) -> float | None:
    """Seconds that records are kept; None if for ever, or unknown."""
    if "delete" not in (_text(configs, "cleanup.policy") or "delete"):
        return None
    kept_ms = _number(configs, "retention.ms")
    return None if kept_ms is None or kept_ms < 0 else kept_ms / 1000


def _text(configs: Configs, name: str) -> str:
    entry = configs.get(name)
    return "" if entry is None or entry.value is None else entry.value.replace(" ", "")


def _number(configs: Configs, name: str) -> int | None:
    try:
        return int(_text(configs, name))
    except ValueError:
        return None


def _span(seconds: float) -> str:
    """``seconds`` as text: ``40.0 s``, ``10.0 min``, ``1.9 h``, ``3.2 days``."""
    for least, divisor, unit in (
        (2 * _PER_DAY, _PER_DAY, "days"), (5_400.0, 3_600.0, "h"), (120.0, 60.0, "min")
    ):  # fmt: skip
        if seconds >= least:
            return f"{seconds / divisor:.1f} {unit}"
    return f"{seconds:.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
