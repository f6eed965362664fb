"""The options that commands share: which files to read, and which part of them to use.

Most commands take a MirrorMaker 2 file, or MirrorMaker 1's files by the Java tool's options or with
the consumer file as the argument (`with_files`, `Files`, `TopicFiles`, `load_settings`). Commands
that make no sense for MirrorMaker 1 take `Mm2File`. ``--flow`` names flows (`Flows`).
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sparkmirror.cli.shared.errors import EXIT_START_FAILED
from sparkmirror.errors import ClusterError, ConfigError, Defect
from sparkmirror.settings import FlowSettings, MirrorSettings
from sparkmirror.text import echo

ConsumerFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--consumer.config",
        metavar="FILE",
        help="MirrorMaker 1: consumer properties (0.7 to 3.9); repeat it for several sources.",
        show_default=False,
    ),
]
ProducerFile = Annotated[
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
        metavar="REGEX",
        help="MirrorMaker 1: topics to mirror.",
        show_default=False,
    ),
]
Whitelist = Annotated[
    str | None,
    typer.Option(
        "--whitelist",
        metavar="REGEX",
        help="MirrorMaker 1: the same as --include, which counts if both are given.",
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
        help="MirrorMaker 1: keep partition numbers and copy whole batches, instead of"
        " partitioning by key.",
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
SameFlow = Annotated[
    str | None,
    typer.Option("--flow", metavar="A->B", help="The same as FLOW.", show_default=False),
]
"""For commands whose argument is a flow."""
Clusters = Annotated[
    list[str] | None,
    typer.Option(metavar="A,B", help="Only flows into these clusters.", show_default=False),
]

Since = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Only events since this time: a duration before now (90s, 15m, 2h, 7d), or an ISO"
        " 8601 date with or without time (in this machine's time zone unless it names one).",
        show_default=False,
    ),
]
_DURATION = re.compile(r"(\d{1,9})\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a command reads: a MirrorMaker 2 file, or both of MirrorMaker 1's."""

    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="MirrorMaker 2 properties file; or, with --producer.config, MirrorMaker 1's"
            " consumer file.",
            show_default=False,
        ),
    ] = None
    consumer_config: ConsumerFiles = None
    producer_config: ProducerFile = None


@dataclass(frozen=True, slots=True)
class TopicFiles(Files):
    """`Files`, and the topic options of MirrorMaker 1."""

    include: Include = None
    whitelist: Whitelist = None
    blacklist: Blacklist = None


def with_files(verb: Callable[..., None]) -> Callable[..., None]:
    """``verb`` with the fields of its first parameter, `Files` or `TopicFiles`, as options."""
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


def settled(files: Files) -> TopicFiles:
    """``files``; a MirrorMaker 1 consumer file given as the argument is moved to its own field.

    Raises ConfigError for a file that cannot be read.
    """
    from sparkmirror.config.files.properties import load_properties  # noqa: PLC0415

    chosen = (
        files
        if isinstance(files, TopicFiles)
        else TopicFiles(files.file, files.consumer_config, files.producer_config)
    )
    alone = chosen.file is not None and not chosen.consumer_config
    if not alone or chosen.producer_config is None:
        return chosen
    if chosen.file is None:
        return chosen
    if "clusters" in load_properties(chosen.file):
        return chosen
    return replace(chosen, file=None, consumer_config=[chosen.file])


def one_flow(argument: str | None, option: str | None) -> str:
    """The flow that a command's argument or ``--flow`` names. Raises ConfigError."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError(
            f"two flows are named, {argument} and {option}.", where="--flow", do="Name one."
        )
    chosen = argument or option
    if not chosen:
        raise ConfigError(
            "no flow is named.", where="FLOW", do="Name one in quotes: 'A->B', or --flow 'A->B'."
        )
    return chosen


def choose_flows(settings: MirrorSettings, wanted: Sequence[str]) -> tuple[FlowSettings, ...]:
    """The flows that ``wanted`` names (``A->B``); all if it is empty. Raises ConfigError."""
    known = {flow.name: flow for flow in settings.flows}
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"{name!r} is not an enabled flow of this file.",
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
    flows: Sequence[str] = (),
) -> MirrorSettings:
    """Read and check a MirrorMaker 2 file, or MirrorMaker 1's files and options.

    ``flows``: only these (``A->B``). ``listed=False``: the command reads no topics, so
    MirrorMaker 1 needs no topic list. Secrets are masked from here on. Raises `MirrorError`.
    """
    from sparkmirror.cli.shared.secrets import hide_secrets  # noqa: PLC0415

    chosen = settled(files)
    given = {
        "--consumer.config": bool(chosen.consumer_config),
        "--producer.config": chosen.producer_config is not None,
        "--include": chosen.include is not None,
        "--whitelist": chosen.whitelist is not None,
        "--blacklist": chosen.blacklist is not None,
        "--num.streams": num_streams is not None,
        "--keep.partitions": keep_partitions,
    }
    _check_files(chosen.file, [option for option, is_given in given.items() if is_given])
    if chosen.file is not None:
        from sparkmirror.config.mm2.load import load_mm2  # noqa: PLC0415

        settings = load_mm2(
            chosen.file, clusters=split_clusters(clusters), exactly_once=exactly_once
        )
    else:
        for option, is_given in (("--clusters", clusters), ("--exactly-once", exactly_once)):
            if is_given:
                raise needs_mm2(option)
        settings = _load_mm1(
            chosen, num_streams=num_streams, keep_partitions=keep_partitions, listed=listed
        )
    hide_secrets(settings)
    return replace(settings, flows=choose_flows(settings, flows)) if flows else settings


def needs_mm2(option: str) -> ConfigError:
    """The error for ``option`` with a file of MirrorMaker 1."""
    return ConfigError(
        "this option needs a MirrorMaker 2 file.",
        where=option,
        do="Leave it out, or create such a file: sparkmirror migrate-config.",
    )


def _check_files(file: Path | None, given: Sequence[str]) -> None:
    """Raise ConfigError unless one MirrorMaker 2 file or both of MirrorMaker 1's are named."""
    needed = ("--consumer.config", "--producer.config")
    if file is not None and given:
        raise ConfigError(
            "this option is for MirrorMaker 1's files; a MirrorMaker 2 file needs none.",
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
    from sparkmirror.config.mm1.load import Extras, load_mm1  # noqa: PLC0415

    if not files.consumer_config:
        raise Defect("MirrorMaker 1 has a consumer file")
    if files.producer_config is None:
        raise Defect("MirrorMaker 1 has a producer file")
    include = include_list(files.include, files.whitelist)
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


def include_list(include: str | None, whitelist: str | None) -> str | None:
    """The list that counts, as in MirrorMaker: ``--include``, else ``--whitelist``."""
    if include is not None and whitelist is not None:
        echo("warning: --whitelist is ignored because --include is given.", error=True)
    return whitelist if include is None else include


def look_up_brokers(connect: str, protocol: str) -> tuple[str, ...]:
    """Call `wire.legacy.zookeeper.find_brokers`.

    It is imported here because most files name their brokers and need no ZooKeeper client.
    """
    from sparkmirror.wire.legacy.zookeeper import find_brokers  # noqa: PLC0415

    try:
        return find_brokers(connect, protocol)
    except ClusterError as error:
        error.exit_code = EXIT_START_FAILED  # as for brokers that do not respond
        raise


def since_ms(text: str, now_s: float | None = None) -> int:
    """The epoch milliseconds of a `Since` value; 0 when it is empty. Raises `ConfigError`."""
    if not text:
        return 0
    match = _DURATION.fullmatch(text.strip())
    if match is not None:
        now_s = time.time() if now_s is None else now_s
        return int((now_s - int(match[1]) * _SECONDS[match[2]]) * 1000)
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"'{text}' is neither a duration nor a date.",
            where="--since",
            do="Write 15m, 2h or 7d, or a date like 2026-01-31 or 2026-01-31T12:00:00Z.",
        ) from None


def split_clusters(values: Sequence[str]) -> tuple[str, ...]:
    """Repeated options and comma-separated values as one list, in order, without duplicates."""
    names = [name.strip() for value in values for name in value.split(",")]
    if any(not name for name in names):
        raise ConfigError(
            "An alias in the list is empty.",
            where="--clusters",
            do="Give aliases like this: --clusters A,B (or --clusters A --clusters B).",
        )
    return tuple(dict.fromkeys(names))


def spark_conf(values: Sequence[str]) -> dict[str, str]:
    """``k=v`` pairs as a dict; the last value of a key wins, as in spark-submit."""
    conf: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"{value!r} is not a key=value pair.",
                where="--conf",
                do="Write it like this: --conf spark.driver.memory=2g.",
            )
        conf[key.strip()] = text.strip()
    return conf
