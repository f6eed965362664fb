"""``sparkmirror migrate-config``: converts other tools' configuration to a MirrorMaker 2 file."""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.settings_options import (
    Blacklist,
    ConsumerFiles,
    Include,
    NumStreams,
    ProducerFile,
    Whitelist,
    include_list,
)
from sparkmirror.errors import ConfigError, MachineError
from sparkmirror.text import echo

if TYPE_CHECKING:
    from sparkmirror.config.files.page import Migrated
    from sparkmirror.settings import FlowSettings, MirrorSettings

_OFFSET_TOPIC = "connect-offsets"
_SECRETS = "/etc/sparkmirror/secrets"
_TARGET = "target"


def migrate_config(
    consumer_config: ConsumerFiles = None,
    producer_config: ProducerFile = None,
    connect: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json",
            help="Kafka Connect: MirrorMaker 2's connectors, in the form that its REST interface"
            " accepts or returns; repeat it for several files.",
            show_default=False,
        ),
    ] = None,
    strimzi: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml", help="Strimzi: a KafkaMirrorMaker2 resource.", show_default=False
        ),
    ] = None,
    offset_topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Kafka Connect: offset.storage.topic of its workers, which holds the positions.",
            show_default=_OFFSET_TOPIC,
        ),
    ] = None,
    secrets: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Strimzi: directory where the Secrets of the resource are mounted, each in a"
            " subdirectory of its name.",
            show_default=_SECRETS,
        ),
    ] = None,
    include: Include = None,
    whitelist: Whitelist = None,
    blacklist: Blacklist = None,
    num_streams: NumStreams = None,
    offset_commit_interval_ms: Annotated[
        int | None,
        typer.Option("--offset.commit.interval.ms", metavar="MS", help="As in MirrorMaker 1."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ALIAS",
            help="MirrorMaker 1: name of the source cluster, one for each consumer file."
            " Default: source (source-1, source-2 …).",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="ALIAS",
            help="MirrorMaker 1: name of the target cluster.",
            show_default=_TARGET,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, readable by this user only. Default: the terminal, unless"
            " the files contain secrets.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output file if it exists.")
    ] = False,
    take_positions: Annotated[
        bool,
        typer.Option(
            "--take-positions",
            help="Also commit the old group's positions for the new flow, so that it continues"
            " where MirrorMaker 1 stopped. Stop MirrorMaker 1 first.",
        ),
    ] = False,
) -> None:
    """Write a MirrorMaker 2 file that replaces MirrorMaker 1's files and options, MirrorMaker 2's
    connectors in Kafka Connect, or a KafkaMirrorMaker2 resource of Strimzi.

    Settings without effect or counterpart become comments with the reason. Files of MirrorMaker 1
    keep topic names (IdentityReplicationPolicy). Only --take-positions changes a cluster. ZooKeeper
    is queried for brokers if MirrorMaker 1's files name none.

    Exit codes: 0 done, 1 a cluster or the disk failed, 2 wrong usage or files.
    """
    of_mm1 = {
        "--consumer.config": bool(consumer_config),
        "--producer.config": producer_config is not None,
        "--include": include is not None,
        "--whitelist": whitelist is not None,
        "--blacklist": blacklist is not None,
        "--num.streams": num_streams is not None,
        "--offset.commit.interval.ms": offset_commit_interval_ms is not None,
        "--source": bool(source),
        "--target": target is not None,
        "--take-positions": take_positions,
    }
    of_connect = {"--connect": bool(connect), "--offset-topic": offset_topic is not None}
    of_strimzi = {"--strimzi": strimzi is not None, "--secrets": secrets is not None}
    if connect or strimzi is not None:
        if connect:
            _check_alone("--connect", of_strimzi | of_mm1)
        else:
            _check_alone("--strimzi", of_connect | of_mm1)
        made = _from_connectors(
            connect,
            strimzi,
            _OFFSET_TOPIC if offset_topic is None else offset_topic,
            secrets or Path(_SECRETS),
        )
        _refuse_to_show(made, output)
        _hand_out(made, output, force=force, keep=False, elsewhere=True)
        return
    missing = [one for one in ("--consumer.config", "--producer.config") if not of_mm1[one]]
    if missing or not consumer_config or not producer_config:
        raise ConfigError(
            "no files to migrate are named.",
            where=" and ".join(missing),
            do="Name both of MirrorMaker 1's files, or --connect FILE.json, or "
            "--strimzi FILE.yaml.",
        )
    _check_alone("--consumer.config", of_connect | of_strimzi)
    from sparkmirror.config.files.properties import load_properties  # noqa: PLC0415
    from sparkmirror.config.mm1.load import load_mm1, read_file  # noqa: PLC0415
    from sparkmirror.config.mm1.migrate import migrate  # noqa: PLC0415
    from sparkmirror.config.table.settings import HIDDEN, Scope  # noqa: PLC0415
    from sparkmirror.wire.legacy.zookeeper import find_brokers  # noqa: PLC0415

    look_up = functools.lru_cache(find_brokers)
    settings = load_mm1(
        consumer_config,
        producer_config,
        include=include_list(include, whitelist),
        exclude=blacklist,
        num_streams=num_streams,
        offset_commit_interval_ms=offset_commit_interval_ms or 60_000,
        find_brokers=look_up,
    )
    settings = _renamed(settings, source, _TARGET if target is None else target)
    read = [read_file(load_properties(path), Scope.CONSUMER, look_up) for path in consumer_config]
    producer, shared = read_file(load_properties(producer_config), Scope.PRODUCER, look_up)
    migrated = migrate(
        settings,
        [consumer for consumer, _ in read],
        producer,
        [mode.over(shared) for _, mode in read],
        offset_commit_interval_ms=offset_commit_interval_ms,
        listed=any(one is not None for one in (include, whitelist, blacklist)),
    )
    _refuse_to_show(migrated, output)
    new_flows = _hand_out(migrated, output, force=force, keep=take_positions)
    if take_positions:
        for old, (consumer, _) in zip(settings.flows, read, strict=True):
            group = HIDDEN if consumer.file["group.id"].secret else old.group_id
            _take_positions(old, _same_flow(old, new_flows, output), group)


def _check_alone(kind: str, others: Mapping[str, bool]) -> None:
    """Raise ConfigError if one of the ``others`` is given, which other kinds of files need."""
    for option, given in others.items():
        if given:
            raise ConfigError(
                f"this option cannot be combined with {kind}.",
                where=option,
                do="Give one or the other.",
            )


def _from_connectors(
    connect: list[Path] | None, strimzi: Path | None, offset_topic: str, secrets: Path
) -> Migrated:
    from sparkmirror.config.connect_json import read_connect  # noqa: PLC0415
    from sparkmirror.config.connectors import mm2_file  # noqa: PLC0415
    from sparkmirror.config.strimzi import read_strimzi  # noqa: PLC0415

    if strimzi is not None:
        made = mm2_file(read_strimzi(strimzi, secrets))
    else:
        made = mm2_file(read_connect(connect or [], offset_topic))
    for note in made.notes:
        echo(f"left out: {note}", error=True)
    return made


def _refuse_to_show(made: Migrated, output: Path | None) -> None:
    if output is None and made.secrets:
        raise ConfigError(
            f"The file contains secrets ({', '.join(made.secrets)}), which are not printed.",
            where="--output",
            do="Name a file to write to.",
        )


def _renamed(settings: MirrorSettings, sources: list[str] | None, target: str) -> MirrorSettings:
    """``settings`` with these cluster aliases; ``sources=None``: the sources keep theirs."""
    aliases = _aliases(sources or [flow.source.alias for flow in settings.flows], target)
    if len(aliases) != len(settings.flows) + 1:
        raise ConfigError(
            f"{len(aliases) - 1} names are given for {len(settings.flows)} consumer files.",
            where="--source",
            do="Give one name for each --consumer.config, in the same order.",
        )
    flows = tuple(
        _renamed_flow(flow, alias, target)
        for flow, alias in zip(settings.flows, aliases, strict=False)
    )
    return replace(settings, flows=flows, clusters=aliases)


def _aliases(sources: list[str], target: str) -> tuple[str, ...]:
    aliases = (*sources, target)
    for alias in aliases:
        if not alias.strip() or "->" in alias or any(c.isspace() or c == "," for c in alias):
            raise ConfigError(
                f"{alias!r} is not an alias.",
                where="--source, --target",
                do="Use letters, digits and dashes.",
            )
    if len(set(aliases)) < len(aliases):
        raise ConfigError(
            "two clusters have the same name.",
            where="--source, --target",
            do="Give each its own name.",
        )
    return aliases


def _renamed_flow(flow: FlowSettings, source: str, target: str) -> FlowSettings:
    return replace(
        flow,
        source=replace(flow.source, alias=source),
        source_admin=replace(flow.source_admin, alias=source),
        target=replace(flow.target, alias=target),
        target_admin=replace(flow.target_admin, alias=target),
    )


def _hand_out(
    made: Migrated, output: Path | None, *, force: bool, keep: bool, elsewhere: bool = False
) -> tuple[FlowSettings, ...]:
    """Print or write the new file; returns its flows. ``keep``: keep an existing file.

    ``elsewhere``: what its placeholders refer to is on another machine.
    """
    flows = _flows_of(made, elsewhere=elsewhere)
    if output is None:
        print(made.text, end="")
    elif keep and not force and _exists(output):
        # It was written earlier and may have been edited since.
        flows = _load(output)
        print(f"{output}: exists and is kept", file=sys.stderr)
    else:
        _write(output, made.text, force=force)
        print(f"{output}: written; start it with: sparkmirror run {output}", file=sys.stderr)
    return flows


def _load(path: Path) -> tuple[FlowSettings, ...]:
    from sparkmirror.config.mm2.load import load_mm2  # noqa: PLC0415

    return load_mm2(path).flows


def _flows_of(made: Migrated, *, elsewhere: bool) -> tuple[FlowSettings, ...]:
    """The flows of the new file, which must load without error before it is handed out."""
    from sparkmirror.config.placeholders import checkable  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="sparkmirror-") as directory:
        path = Path(directory) / "mm2.properties"
        path.touch(mode=0o600)
        try:
            text = checkable(made.text, path) if elsewhere else made.text
            path.write_text(text, encoding="ascii")
            return _load(path)
        except ConfigError as error:
            raise _at_its_origin(error, path, made) from None


def _at_its_origin(error: ConfigError, path: Path, made: Migrated) -> ConfigError:
    """``error``, with places in the new file replaced by the places that they come from."""

    def origin(match: re.Match[str]) -> str:
        return made.origins.get(int(match[1] or 0), "the new file")

    place = re.compile(re.escape(str(path)) + r"(?::(\d+))?")
    what, where, do = (place.sub(origin, text) for text in (error.what, error.where, error.do))
    return ConfigError(what, where=where, do=do)


def _same_flow(
    old: FlowSettings, flows: tuple[FlowSettings, ...], path: Path | None
) -> FlowSettings:
    for flow in flows:
        if flow.name == old.name:
            return flow
    raise ConfigError(
        f"The file has no flow {old.name}.",
        where=str(path),
        do="Give --source and --target the names that the clusters have in the file.",
    )


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a file that only this user may read; an old one is replaced atomically."""
    if not force and _exists(path):
        raise ConfigError(
            "The file exists.", where=str(path), do="Name another one, or give --force."
        )
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(number, "w", encoding="ascii") as file:
                file.write(text)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()  # the text may contain secrets
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> MachineError:
    return MachineError(
        f"The file cannot be written: {error.strerror}.",
        where=str(path),
        do="Name a file in a directory that exists and that this user may write.",
    )


def _take_positions(old: FlowSettings, new: FlowSettings, group: str) -> None:
    from sparkmirror.control.positions.handover import hand_over  # noqa: PLC0415

    with Connections() as connections:
        connections.expect((old.source, old.target_admin))
        source, target = connections.cluster(old.source), connections.cluster(old.target_admin)
        done = hand_over(source, target, old, new)
    print(
        f"{new.name}: {len(done.taken)} positions taken over from group {group},"
        f" {len(done.kept)} existed already",
        file=sys.stderr,
    )
    if done.absent:
        shown = ", ".join(map(str, done.absent[:5])) + (" …" if len(done.absent) > 5 else "")
        print(
            f"{new.name}: no position was committed for {len(done.absent)} partitions that the"
            f" target does not have yet ({shown}); they start at {new.fetch.auto_offset_reset}",
            file=sys.stderr,
        )
