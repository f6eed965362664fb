"""The files that a verb is given, and what of them it looks at: the options that verbs share.

Verbs take MirrorMaker 2's file (`Mm2File`); or that, or MirrorMaker 1's files by the Java tool's
options (`with_files`, `Files`, `TopicFiles`: `load_settings`); or either one's as the argument
(`File`, `ProducerFile`: `load_files`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sparkmirror.cli.errors import EXIT_START_FAILED
from sparkmirror.errors import ClusterError, ConfigError, Defect
from sparkmirror.model import FlowSettings, MirrorSettings

__all__ = [
    "Clusters",
    "File",
    "Files",
    "Flows",
    "KeepPartitions",
    "Mm2File",
    "NumStreams",
    "ProducerFile",
    "TopicFiles",
    "choose_flows",
    "load_files",
    "load_settings",
    "look_up_brokers",
    "with_files",
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


@dataclass(frozen=True, slots=True)
class Files:
    """What a verb is to read: a MirrorMaker 2 file, or both of MirrorMaker 1's."""

    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="MirrorMaker 2 properties file.", show_default=False),
    ] = None
    consumer_config: Annotated[
        list[Path] | None,
        typer.Option(
            "--consumer.config",
            metavar="FILE",
            help="MirrorMaker 1: consumer properties; repeat it for several sources.",
            show_default=False,
        ),
    ] = None
    producer_config: Annotated[
        Path | None,
        typer.Option(
            "--producer.config",
            metavar="FILE",
            help="MirrorMaker 1: producer properties.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TopicFiles(Files):
    """`Files`, and which topics those of MirrorMaker 1 are about."""

    include: Annotated[
        str | None,
        typer.Option(
            "--include",
            "--whitelist",
            metavar="REGEX",
            help="MirrorMaker 1: topics to mirror.",
            show_default=False,
        ),
    ] = None
    blacklist: Annotated[
        str | None,
        typer.Option(
            "--blacklist",
            metavar="REGEX",
            help="MirrorMaker 1: all but these topics.",
            show_default=False,
        ),
    ] = None


def with_files(verb: Callable[..., None]) -> Callable[..., None]:
    """``verb`` with the options that its first parameter, `Files` or `TopicFiles`, stands for."""
    first, *own = inspect.signature(verb, eval_str=True).parameters.values()
    kind = first.annotation
    hints = get_type_hints(kind, include_extras=True)
    shared = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=one.default,
            annotation=hints[one.name],
        )
        for one in fields(kind)
    ]

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        verb(kind(**{one.name: given.pop(one.name) for one in shared}), **given)

    options = [*shared, *own]
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in options}
    return called


def load_files(
    path: Path, producer: Path | None = None, clusters: Sequence[str] = ()
) -> MirrorSettings:
    """Either one's file as the argument; secrets are masked from here on. Raises `MirrorError`."""
    from sparkmirror.config.properties import load_properties  # noqa: PLC0415

    if "clusters" in load_properties(path):
        return load_settings(Files(path, None, producer), clusters, listed=False)
    if producer is None:
        raise ConfigError(
            "this is MirrorMaker 1's consumer file; the target is in the producer file.",
            where=str(path),
            do="Add --producer.config FILE.",
        )
    return load_settings(Files(None, [path], producer), clusters, listed=False)


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


def load_settings(
    files: Files,
    clusters: Sequence[str] = (),
    *,
    num_streams: int | None = None,
    keep_partitions: bool = False,
    listed: bool = True,
    exactly_once: bool = False,
) -> MirrorSettings:
    """A MirrorMaker 2 file, or MirrorMaker 1's files and options, read and checked.

    ``listed`` False: the verb looks at no topics, so MirrorMaker 1 needs no list of them. Secrets
    are masked from here on. Raises `MirrorError`.
    """
    from sparkmirror.cli.main import split_clusters  # noqa: PLC0415
    from sparkmirror.cli.run import hide_secrets  # noqa: PLC0415

    chosen = (
        files
        if isinstance(files, TopicFiles)
        else TopicFiles(files.file, files.consumer_config, files.producer_config)
    )
    given = {
        "--consumer.config": bool(chosen.consumer_config),
        "--producer.config": chosen.producer_config is not None,
        "--include": chosen.include is not None,
        "--blacklist": chosen.blacklist is not None,
        "--num.streams": num_streams is not None,
        "--keep.partitions": keep_partitions,
    }
    _check_files(chosen.file, [option for option, is_given in given.items() if is_given])
    if chosen.file is not None:
        from sparkmirror.config.mm2 import load_mm2  # noqa: PLC0415

        settings = load_mm2(
            chosen.file, clusters=split_clusters(clusters), exactly_once=exactly_once
        )
    else:
        for option, is_given in (("--clusters", clusters), ("--exactly-once", exactly_once)):
            if is_given:
                raise ConfigError(
                    "this option goes with a MirrorMaker 2 file.",
                    where=option,
                    do="Leave it out, or make such a file: sparkmirror migrate-config.",
                )
        settings = _load_mm1(
            chosen, num_streams=num_streams, keep_partitions=keep_partitions, listed=listed
        )
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
    files: TopicFiles, *, num_streams: int | None, keep_partitions: bool, listed: bool
) -> MirrorSettings:
    from sparkmirror.config.mm1 import Extras, load_mm1  # noqa: PLC0415

    if not files.consumer_config:
        raise Defect("MirrorMaker 1 has a consumer file")
    if files.producer_config is None:
        raise Defect("MirrorMaker 1 has a producer file")
    include = files.include
    if not listed and include is None and files.blacklist is None:
        include = ".*"
    return load_mm1(
        files.consumer_config,
        files.producer_config,
        include=include,
        exclude=files.blacklist,
        num_streams=num_streams,
        find_brokers=look_up_brokers,
        extras=Extras(keep_partitions=keep_partitions),
    )


def look_up_brokers(connect: str, protocol: str) -> tuple[str, ...]:
    """`wire.zookeeper.find_brokers`; most files name their brokers and need no ZooKeeper client."""
    from sparkmirror.wire.zookeeper import find_brokers  # noqa: PLC0415

    try:
        return find_brokers(connect, protocol)
    except ClusterError as error:
        error.exit_code = EXIT_START_FAILED  # as for brokers that do not answer
        raise
