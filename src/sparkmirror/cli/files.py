"""The files that a verb is given, and what of them it looks at: the options that verbs share.

Verbs take MirrorMaker 2's file (`Mm2File`); or that, or MirrorMaker 1's files by the Java tool's
options (`OptionalFile`, `ConsumerConfigs`, `ProducerConfig`, `Include`: `load_settings`); or either
one's as the argument (`File`, `ProducerFile`: `load_files`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparkmirror.errors import ConfigError
from sparkmirror.model import FlowSettings, MirrorSettings

__all__ = [
    "Clusters",
    "ConsumerConfigs",
    "File",
    "Flows",
    "Include",
    "Mm2File",
    "OptionalFile",
    "ProducerConfig",
    "ProducerFile",
    "choose_flows",
    "load_files",
    "load_settings",
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
    """Read and check the file or files; secrets are masked from here on. Raises ConfigError."""
    from sparkmirror.cli.main import split_clusters  # noqa: PLC0415
    from sparkmirror.cli.run import hide_secrets  # noqa: PLC0415
    from sparkmirror.config.mm1 import load_mm1  # noqa: PLC0415
    from sparkmirror.config.mm2 import load_mm2  # noqa: PLC0415
    from sparkmirror.config.properties import load_properties  # noqa: PLC0415
    from sparkmirror.wire.zookeeper import find_brokers  # noqa: PLC0415

    two = "clusters" in load_properties(path)
    if two and producer is not None:
        raise ConfigError(
            "a MirrorMaker 2 file names all clusters itself.",
            where="--producer.config",
            do="Leave it out; it is for MirrorMaker 1's files.",
        )
    if two:
        settings = load_mm2(path, clusters=split_clusters(clusters))
    elif producer is None:
        raise ConfigError(
            "this is MirrorMaker 1's consumer file; the target is in the producer file.",
            where=str(path),
            do="Add --producer.config FILE.",
        )
    else:
        settings = load_mm1(path, producer, include=".*", find_brokers=find_brokers)
    hide_secrets(settings)
    return settings


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
    file: Path | None,
    consumer_configs: Sequence[Path],
    producer_config: Path | None,
    include: str | None,
    clusters: Sequence[str],
) -> MirrorSettings:
    """A MirrorMaker 2 file, or MirrorMaker 1's files and topic list; secrets are masked from here
    on. Raises `MirrorError`.
    """
    from sparkmirror.cli.main import split_clusters  # noqa: PLC0415
    from sparkmirror.cli.run import hide_secrets  # noqa: PLC0415
    from sparkmirror.config.mm1 import load_mm1  # noqa: PLC0415
    from sparkmirror.config.mm2 import load_mm2  # noqa: PLC0415

    if file is not None and not consumer_configs and producer_config is None and include is None:
        settings = load_mm2(file, clusters=split_clusters(clusters))
    elif file is None and consumer_configs and producer_config is not None:
        from sparkmirror.wire.zookeeper import find_brokers  # noqa: PLC0415

        settings = load_mm1(
            consumer_configs, producer_config, include=include, find_brokers=find_brokers
        )
    else:
        raise ConfigError(
            "the files are not clear.",
            where="FILE",
            do="Name one MirrorMaker 2 file, or --consumer.config, --producer.config and"
            " --include.",
        )
    hide_secrets(settings)
    return settings
