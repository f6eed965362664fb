"""Settings of the metrics server, from the driver's keys of a MirrorMaker 2 file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader
from sparkmirror.config.table.settings import Scope
from sparkmirror.errors import ConfigError
from sparkmirror.settings import MetricsSettings

_P = "sparkmirror.metrics."


def metrics_settings(raw: Mapping[str, Entry], path: Path) -> MetricsSettings:
    """The file's settings. Raises ConfigError if two of them contradict each other."""
    reader = ValueReader(raw, Scope.DRIVER)
    values = {
        name: reader.text(_P + name)
        for name in ("listen", "labels", "tls.cert", "tls.key", "token", "token.file")
    }
    for one, other in (("tls.cert", "tls.key"), ("tls.key", "tls.cert")):
        if values[one] and not values[other]:
            raise ConfigError(
                f"{_P}{one} is set, {_P}{other} is not.",
                where=raw[_P + one].where,
                do="Set both, or none.",
            )
    if values["token"] and values["token.file"]:
        raise ConfigError(
            f"{_P}token and {_P}token.file are both set.",
            where=raw[f"{_P}token.file"].where,
            do="Set one of them.",
        )
    entry = raw.get(f"{_P}listen")
    return MetricsSettings(
        listen=values["listen"],
        labels=values["labels"],
        tls_cert=values["tls.cert"],
        tls_key=values["tls.key"],
        token=values["token"],
        token_file=values["token.file"],
        where=str(path) if entry is None else entry.where,
    )
