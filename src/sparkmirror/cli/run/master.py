"""Spark masters: what Spark would refuse only after the clusters were asked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from sparkmirror.errors import ConfigError

__all__ = ["check_master"]

_KNOWN = re.compile(
    r"local(?:\[(?:[1-9]\d*|\*)(?:\s*,\s*[1-9]\d*)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^\s,/]+:\d+(?:,[^\s,/]+:\d+)*"
    r"|k8s://\S+"
)
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def check_master(master: str, environment: Mapping[str, str] | None = None) -> None:
    """Raise `ConfigError` for what is no Spark master, or one that Spark cannot find from here."""
    master = master.strip()
    if master == "yarn":
        named = os.environ if environment is None else environment
        places = {name: named[name] for name in _HADOOP if named.get(name)}
        if any(Path(place).is_dir() for place in places.values()):
            return
        said = ", ".join(f"{name}={place} is no directory" for name, place in places.items())
        raise ConfigError(
            f"Spark finds no YARN from here: {said or ' and '.join(_HADOOP) + ' are not set'}.",
            where="--master yarn",
            do="Set HADOOP_CONF_DIR to the directory with yarn-site.xml and core-site.xml.",
        )
    if not _KNOWN.fullmatch(master):
        raise ConfigError(
            f"{master!r} is no Spark master.",
            where="--master",
            do="Write local[N], local[*], spark://host:port, yarn or k8s://https://host:port.",
        )
