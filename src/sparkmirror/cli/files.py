"""The files that a verb is given, and what of them it looks at: the options that verbs share.

Verbs take MirrorMaker 2's file (`Mm2File`); or that, or MirrorMaker 1's files by the Java tool's
options (`OptionalFile`, `ConsumerConfigs`, `ProducerConfig`, `Include`: `load_settings`); or either
one's as the argument (`File`, `ProducerFile`: `load_files`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sparkmirror.cli.errors import EXIT_START_FAILED
from sparkmirror.errors import ClusterError, ConfigError
from sparkmirror.model import FlowSettings, MirrorSettings

__all__ = [
    "Blacklist",
    "Clusters",
    "ConsumerConfigs",
    "File",
    "Flows",
    "Include",
    "KeepPartitions",
    "Mm1Options",
    "Mm2File",
    "NumStreams",
    "OptionalFile",
    "ProducerConfig",
    "ProducerFile",
    "choose_flows",
    "load_files",
    "load_settings",
    "look_up_brokers",
]

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="MirrorMaker 2 file, or MirrorMaker 1's consumer file.",
        show_default=False,
    ),
]
ProducerFile = Annotated[
    Path | None,
    typer.Option(
        "--producer.config",
        metavar="FILE",
        help="MirrorMaker 1's producer file, with its consumer file as FILE.",
        show_default=False,
    ),
]
Mm2File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="MirrorMaker 2 properties file.", show_default=False),
]
OptionalFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="MirrorMaker 2 properties file.", show_default=False),
]
ConsumerConfigs = Annotated[
    list[Path] | None,
    typer.Option(
        "--consumer.config",
        metavar="FILE",
        help="MirrorMaker 1: consumer properties; repeat it for several sources.",
        show_default=False,
    ),
]
ProducerConfig = Annotated[
    Path | None,
    typer.Option(
        "--producer.config",
        metavar="FILE",
        help="MirrorMaker 1: producer properties.",
        show_default=False,
    ),
]
Include = Annotated[
    str | None,
    typer.Option(
        "--include",
        "--whitelist",
        metavar="REGEX",
        help="MirrorMaker 1: topics to mirror.",
        show_default=False,
    ),
]
Blacklist = Annotated[
    str | None,
    typer.Option(
        "--blacklist",
        metavar="REGEX",
        help="MirrorMaker 1: all but these topics.",
        show_default=False,
    ),
]
NumStreams = Annotated[
    int | None,
    typer.Option(
        "--num.streams",
        metavar="N",
        help="MirrorMaker 1: Spark tasks of each source cluster. Default: 1.",
        show_default=False,
    ),
]
KeepPartitions = Annotated[
    bool,
    typer.Option(
        "--keep.partitions",
        help="MirrorMaker 1: keep partition numbers and carry whole batches, instead of by key.",
    ),
]
Flows = Annotated[
    list[str] | None,
    typer.Option(
        "--flow",
        metavar="A->B",
        help="Only this flow; may be repeated. Default: all that are enabled.",
        show_default=False,
    ),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(metavar="A,B", help="Only flows into these clusters.", show_default=False),
]


def load_files(
    path: Path, producer: Path | None = None, clusters: Sequence[str] = ()
) -> MirrorSettings:
    """Either one's file as the argument; secrets are masked from here on. Raises `MirrorError`."""
    from sparkmirror.config.properties import load_properties  # noqa: PLC0415

    if "clusters" in load_properties(path):
        return load_settings(path, (), producer, None, clusters, listed=False)
    if producer is None:
        raise ConfigError(
            "this is MirrorMaker 1's consumer file; the target is in the producer file.",
            where=str(path),
            do="Add --producer.config FILE.",
        )
    return load_settings(None, [path], producer, None, clusters, listed=False)


def choose_flows(settings: MirrorSettings, wanted: Sequence[str]) -> tuple[FlowSettings, ...]:
    """The flows named like ``A->B``, all when none is named. Raises ConfigError."""
    known = {flow.name: flow for flow in settings.flows}
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"{name!r} is no enabled flow of this file.",
                where="FLOW",
                do=f"Choose from: {', '.join(known)} (in quotes, because of the >).",
            )
    return tuple(known[name] for name in dict.fromkeys(wanted)) or settings.flows


@dataclass(frozen=True, slots=True)
class Mm1Options:
    """What else MirrorMaker 1's options say, where a verb takes them."""

    blacklist: str | None = None
    num_streams: int | None = None
    keep_partitions: bool = False


def load_settings(
    file: Path | None,
    consumer_configs: Sequence[Path],
    producer_config: Path | None,
    include: str | None,
    clusters: Sequence[str],
    *,
    mm1: Mm1Options | None = None,
    listed: bool = True,
    exactly_once: bool = False,
) -> MirrorSettings:
    """A MirrorMaker 2 file, or MirrorMaker 1's files and options, read and checked.

    ``listed`` False: the verb looks at no topics, so MirrorMaker 1 needs no list of them. Secrets
    are masked from here on. Raises `MirrorError`.
    """
    from sparkmirror.cli.main import split_clusters  # noqa: PLC0415
    from sparkmirror.cli.run import hide_secrets  # noqa: PLC0415

    options = mm1 or Mm1Options()
    given = {
        "--consumer.config": bool(consumer_configs),
        "--producer.config": producer_config is not None,
        "--include": include is not None,
        "--blacklist": options.blacklist is not None,
        "--num.streams": options.num_streams is not None,
        "--keep.partitions": options.keep_partitions,
    }
    _check_files(file, [option for option, is_given in given.items() if is_given])
    if file is not None:
        from sparkmirror.config.mm2 import load_mm2  # noqa: PLC0415

        settings = load_mm2(file, clusters=split_clusters(clusters), exactly_once=exactly_once)
    else:
        assert producer_config is not None
        for option, is_given in (("--clusters", clusters), ("--exactly-once", exactly_once)):
            if is_given:
                raise ConfigError(
                    "this option goes with a MirrorMaker 2 file.",
                    where=option,
                    do="Leave it out, or make such a file: sparkmirror migrate-config.",
                )
        settings = _load_mm1(consumer_configs, producer_config, include, options, listed=listed)
    hide_secrets(settings)
    return settings


def _check_files(file: Path | None, given: Sequence[str]) -> None:
    """ConfigError unless it is one MirrorMaker 2 file, or both of MirrorMaker 1's."""
    needed = ("--consumer.config", "--producer.config")
    if file is not None and given:
        raise ConfigError(
            "a MirrorMaker 2 file says everything itself; this option goes with MirrorMaker 1's.",
            where=given[0],
            do=f"Leave out {given[0]}, or leave out {file} and name both files of MirrorMaker 1.",
        )
    missing = [] if file is not None else [option for option in needed if option not in given]
    if missing:
        raise ConfigError(
            "a MirrorMaker 2 file is needed, or both of MirrorMaker 1's.",
            where=" and ".join(missing) if given else "FILE",
            do="Name one FILE, or --consumer.config FILE and --producer.config FILE.",
        )


def _load_mm1(
    consumers: Sequence[Path],
    producer: Path,
    include: str | None,
    options: Mm1Options,
    *,
    listed: bool,
) -> MirrorSettings:
    from sparkmirror.config.mm1 import Extras, load_mm1  # noqa: PLC0415

    if not listed and include is None and options.blacklist is None:
        include = ".*"
    return load_mm1(
        consumers,
        producer,
        include=include,
        exclude=options.blacklist,
        num_streams=options.num_streams,
        find_brokers=look_up_brokers,
        extras=Extras(keep_partitions=options.keep_partitions),
    )


def look_up_brokers(connect: str, protocol: str) -> tuple[str, ...]:
    """`wire.zookeeper.find_brokers`; most files name their brokers and need no ZooKeeper client."""
    from sparkmirror.wire.zookeeper import find_brokers  # noqa: PLC0415

    try:
        return find_brokers(connect, protocol)
    except ClusterError as error:
        error.exit_code = EXIT_START_FAILED  # as for brokers that do not answer
        raise
