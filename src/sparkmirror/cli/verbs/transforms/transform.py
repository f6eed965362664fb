"""``sparkmirror transform try``: a file's transforms on records of the source; writes nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.cluster_session import finish
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.shared.settings_options import Files, Mm2File, load_settings, since_ms
from sparkmirror.cli.shared.tables import Format, Output
from sparkmirror.cli.verbs.transforms.reload import reload
from sparkmirror.errors import ClusterError, ConfigError, MirrorError

if TYPE_CHECKING:
    from sparkmirror.data.transform.replay import Part
    from sparkmirror.model import TopicPartition
    from sparkmirror.settings import FlowSettings, MirrorSettings
    from sparkmirror.wire.admin.cluster import Cluster

transform = typer.Typer(
    help="What the SQL of a file does to records, and the tables that it looks rows up in.",
    no_args_is_help=True,
)
transform.command(
    "reload", epilog="Example: sparkmirror transform reload mm2.properties --table customers"
)(reload)

_OFFSET = re.compile(r"\d{1,19}")


@transform.command("try", epilog="Example: sparkmirror transform try mm2.properties --from 1h")
def try_(
    file: Mm2File,
    flow: Annotated[
        str | None,
        typer.Option(
            metavar="A->B",
            help="The flow, if several have transforms.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The source topic. Default: all topics with a transform.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="earliest, a duration before now (90s, 15m, 2h, 7d), an ISO 8601 time, or with"
            " --topic an offset. Default: the newest records.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="How many records to read.")
    ] = 20,
    output: Output = Format.TABLE,
) -> None:
    """Show what a file's transforms make of records of the source. Nothing is written anywhere.

    Records are read as a mirror reads them, and the same code runs the SQL. Shown are the records
    before and after, how many are left out, on which the SQL fails and why, Spark's plan, and what
    the transform costs. No topic or group is created, and none is joined. It prints keys and
    values: whoever reads its output reads the records.

    Exit codes: 0 shown; 1 no records, or the SQL failed on some; 2 wrong usage, file or SQL;
    3 the source is unavailable.
    """
    from sparkmirror.cli.verbs.transforms.report import report  # noqa: PLC0415
    from sparkmirror.data.transform.replay import open_replay  # noqa: PLC0415
    from sparkmirror.data.transform.trial import measure, tried  # noqa: PLC0415

    settings = load_settings(Files(file), flows=[flow] if flow else [])
    chosen = _flow_of(settings)
    try:
        with Connections() as connections:
            connections.expect((chosen.source,))
            _check_start(start, topic)
            source = connections.cluster(chosen.source)
            partitions = _partitions(source, chosen, topic)
            parts = _sample(source, chosen, partitions, start, limit)
    except ClusterError as error:
        show_error(error, json_lines=output is Format.JSON)
        raise typer.Exit(EXIT_START_FAILED) from error
    with open_replay(settings, chosen, _remote_partitions(chosen, partitions)) as replay:
        records = tried(replay, parts)
        names = {one: _transform_of(chosen, one) for one in sorted({one.topic for one in records})}
        shown = report(chosen.name, names, records, replay.spark_plan(), measure(replay, parts))
    finish(shown, output)
    if any(one.failed for one in records):
        raise typer.Exit(1)


def _flow_of(settings: MirrorSettings) -> FlowSettings:
    """The flow with transforms. Raises ConfigError if there is none, or more than one."""
    found = [one for one in settings.flows if one.transforms]
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.name for one in found)
    raise ConfigError(
        f"{len(found)} flows have transforms: {names}."
        if found
        else f"{', '.join(one.name for one in settings.flows)} has no transform.",
        where="--flow",
        do="Name one, in quotes because of the >: --flow 'A->B'."
        if found
        else "Set sparkmirror.transforms in the file.",
    )


def _transform_of(flow: FlowSettings, topic: str) -> str:
    from sparkmirror.names.transforms import Transformed  # noqa: PLC0415

    return flow.transforms[Transformed(flow).number(topic)].name


def _check_start(start: str | None, topic: str | None) -> None:
    """Raise ConfigError for an offset without a topic."""
    if start is not None and _OFFSET.fullmatch(start) and topic is None:
        raise ConfigError(
            f"{start} is an offset, and no topic is named.", where="--from", do="Add --topic NAME."
        )


def _remote_partitions(
    flow: FlowSettings, partitions: Sequence[TopicPartition]
) -> Mapping[str, int]:
    """How many partitions a mirror gives the remote topics of these source ``partitions``."""
    from sparkmirror.names.replication_policy import FlowTopics  # noqa: PLC0415

    names = FlowTopics(flow)
    return Counter(names.remote(tp.topic) for tp in partitions)


def _sample(
    source: Cluster,
    flow: FlowSettings,
    partitions: Sequence[TopicPartition],
    start: str | None,
    limit: int,
) -> list[Part]:
    """At most ``limit`` records, an equal share of each partition. Raises `MirrorError`."""
    from sparkmirror.data.transform.replay import read_parts  # noqa: PLC0415
    from sparkmirror.internal_topics.assignments import SourcePartition  # noqa: PLC0415
    from sparkmirror.names.replication_policy import FlowTopics  # noqa: PLC0415

    names = FlowTopics(flow)
    parts: list[Part] = []
    wide, before = limit, None
    while not parts:
        spans = _spans(source, flow, partitions, start, wide)
        if spans == before:
            break
        left = limit
        for number, (tp, (first, end)) in enumerate(sorted(spans.items())):
            share = -(-left // (len(spans) - number))
            if share:
                one = SourcePartition(tp.topic, tp.partition, names.remote(tp.topic))
                found = list(read_parts(flow, one, first, end, share))
                left -= sum(chunk.record_count for chunk, _ in found)
                parts += found
        # The newest offsets may all be markers, or compacted away.
        before, wide = spans, wide * 16
    if not parts:
        topics = ", ".join(sorted({tp.topic for tp in partitions}))
        since = f" from {start} on" if start else ""
        raise MirrorError(
            f"{topics} has no records{since}.",
            where=f"cluster {flow.source.alias}",
            do="Name another topic or time: --topic, --from earliest.",
        )
    return parts


def _partitions(source: Cluster, flow: FlowSettings, topic: str | None) -> list[TopicPartition]:
    """The partitions of the topics to read. Raises ConfigError."""
    from sparkmirror.model import TopicPartition  # noqa: PLC0415
    from sparkmirror.names.replication_policy import FlowTopics  # noqa: PLC0415
    from sparkmirror.names.transforms import Transformed, unclear_topics  # noqa: PLC0415

    names, transformed = FlowTopics(flow), Transformed(flow)
    lists = "; ".join(f"{one.name}: {', '.join(one.topics)}" for one in flow.transforms)
    where = f"flow {flow.name}"
    if topic is not None and transformed.number(topic) < 0:
        raise ConfigError(
            f"no transform processes topic {topic}.",
            where=where,
            do=f"Name a topic that one of the lists matches ({lists}).",
        )
    there = source.topics(None if topic is None else [topic])
    if topic is not None and topic not in there:
        raise ConfigError(
            f"cluster {flow.source.alias} has no topic {topic}, or its principal may not see it.",
            where=where,
            do="Check --topic: sparkmirror topics lists those of the flow.",
        )
    if topic is not None and not names.accepts(topic):
        raise ConfigError(
            f"the flow does not mirror topic {topic}.",
            where=where,
            do="Check its list of topics in the file.",
        )
    # Of two transforms that match a topic, neither applies: it is not mirrored.
    unclear = unclear_topics(flow, there)
    chosen = {
        name: view
        for name, view in there.items()
        if not (view.internal or name in unclear)
        and names.accepts(name)
        and transformed.number(name) >= 0
    }
    if not chosen:
        raise ConfigError(
            "no transform matches a topic that the flow mirrors.",
            where=where,
            do=f"Check the lists of topics ({lists}) against those of the cluster.",
        )
    return [
        TopicPartition(name, number)
        for name, view in chosen.items()
        for number in range(view.partitions)
    ]


def _spans(
    source: Cluster,
    flow: FlowSettings,
    partitions: Sequence[TopicPartition],
    start: str | None,
    limit: int,
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Where to read each partition that has something: first offset, and the end.

    Raises ConfigError for a ``start`` that is no time.
    """
    ends = source.end_offsets(partitions, flow.fetch.isolation_level)
    begins = dict(source.earliest_offsets(partitions))
    if start is None:
        share = -(-limit // len(partitions))
        begins = {tp: max(first, ends.get(tp, 0) - share) for tp, first in begins.items()}
    elif _OFFSET.fullmatch(start):
        begins = {tp: max(first, int(start)) for tp, first in begins.items()}
    elif start != "earliest":
        found = source.offsets_at(partitions, since_ms(start))
        begins = {tp: first for tp, first in found.items() if first >= 0}
    return {tp: (begins[tp], end) for tp, end in ends.items() if begins.get(tp, end) < end}
