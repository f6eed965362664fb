"""The files of either MirrorMaker, for verbs that take both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkmirror.errors import ConfigError

if TYPE_CHECKING:
    from sparkmirror.model import MirrorSettings

__all__ = ["load_settings"]


def load_settings(
    file: Path | None,
    consumer_configs: Sequence[Path],
    producer_config: Path | None,
    include: str | None,
    clusters: Sequence[str],
) -> MirrorSettings:
    """A MirrorMaker 2 file, or MirrorMaker 1's files and topic list. Raises `MirrorError`."""
    from sparkmirror.config.mm1 import load_mm1  # noqa: PLC0415
    from sparkmirror.config.mm2 import load_mm2  # noqa: PLC0415

    if file is not None and not consumer_configs and producer_config is None and include is None:
        return load_mm2(file, clusters=clusters)
    if file is None and consumer_configs and producer_config is not None:
        from sparkmirror.wire.zookeeper import find_brokers  # noqa: PLC0415

        return load_mm1(
            consumer_configs, producer_config, include=include, find_brokers=find_brokers
        )
    raise ConfigError(
        "the files are not clear.",
        where="FILE",
        do="Name one MirrorMaker 2 file, or --consumer.config, --producer.config and --include.",
    )
