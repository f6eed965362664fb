"""The files below ``examples/``: what each of them mirrors, and how a test makes one its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DIRECTORY", "EXAMPLES", "MM1_EXAMPLES", "Copy", "adapted", "adapted_mm1"]

DIRECTORY = Path(__file__).parents[1] / "examples"
_ETC = "/etc/sparkmirror"
_TOPICS = ("orders", "customers", "prices")
_FACTORS = (
    "replication.factor",
    "offset-syncs.topic.replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset.storage.replication.factor",
)


@dataclass(frozen=True)
class Copy:
    """A topic of the cluster ``source`` and its remote topic on ``target``, without `name`."""

    source: str
    topic: str
    target: str
    prefix: str

    def remote(self, name: str) -> str:
        """The remote topic, when the file's topics end with ``-name``."""
        return f"{self.prefix}{self.topic}-{name}"


def _from(source: str, topic: str, *targets: str) -> tuple[Copy, ...]:
    return tuple(Copy(source, topic, target, f"{source}.") for target in targets)


EXAMPLES: Mapping[str, tuple[Copy, ...]] = {
    "active-passive": (
        *_from("primary", "orders", "secondary"),
        *_from("primary", "customers", "secondary"),
    ),
    "active-active": (
        *_from("us-west", "orders", "us-east"),
        *_from("us-east", "orders", "us-west"),
    ),
    "aggregation": (*_from("west", "orders", "central"), *_from("east", "orders", "central")),
    "fan-out": _from("central", "prices", "west", "east"),
    "hub-and-spoke": (
        *_from("north", "orders", "hub"),
        *_from("south", "orders", "hub"),
        Copy("north", "orders", "south", "hub.north."),
        Copy("south", "orders", "north", "hub.south."),
    ),
    "connect-mirror-maker": (*_from("A", "orders", "B"), *_from("B", "orders", "A")),
    "exactly-once": _from("primary", "orders", "secondary"),
    "tls": _from("us-west", "orders", "us-east"),
    "sasl-ssl-scram": _from("us-west", "orders", "us-east"),
    "kerberos": _from("us-west", "orders", "us-east"),
}
"""The MirrorMaker 2 files by name, and every topic that is found on another cluster then."""

MM1_EXAMPLES = ("mirrormaker-1", "kerberos-mirrormaker-1")


def adapted(
    name: str, directory: Path, servers: Mapping[str, str], topics: str, **instead: str
) -> Path:
    """The example ``name`` for these ``servers`` by alias; its topics end with ``-topics``.

    Clusters here have one broker, and new topics are found at once. ``/etc/sparkmirror`` is
    ``directory``; ``instead``: further words, and what stands for them here.
    """
    text = _adapted((DIRECTORY / f"{name}.properties").read_text(), directory, topics, instead)
    for alias, address in servers.items():
        text, found = re.subn(
            rf"^{alias}\.bootstrap\.servers = .*$",
            f"{alias}.bootstrap.servers = {address}",
            text,
            flags=re.MULTILINE,
        )
        assert found == 1, alias
    text = re.sub(rf"^({'|'.join(map(re.escape, _FACTORS))})\b.*\n", "", text, flags=re.MULTILINE)
    text += "".join(f"{key} = 1\n" for key in _FACTORS)
    text += "refresh.topics.interval.seconds = 1\n"
    path = directory / f"{name}.properties"
    path.write_text(text)
    return path


def adapted_mm1(
    name: str, directory: Path, source: str, target: str, topics: str, **instead: str
) -> list[str]:
    """MirrorMaker 1's example ``name``: the options that name its files; group ``mirror-topics``.

    ``source``, ``target``: addresses.
    """
    options = []
    for role, address in (("consumer", source), ("producer", target)):
        text = (DIRECTORY / name / f"{role}.properties").read_text()
        text = _adapted(text, directory, topics, instead)
        text = re.sub(r"^(bootstrap\.servers)=.*$", rf"\1={address}", text, flags=re.MULTILINE)
        text = text.replace("mirror-group", f"mirror-{topics}")
        path = directory / f"{role}.properties"
        path.write_text(text)
        options += [f"--{role}.config", str(path)]
    return options


def _adapted(text: str, directory: Path, topics: str, instead: Mapping[str, str]) -> str:
    for topic in _TOPICS:
        text = re.sub(rf"\b{topic}\b", f"{topic}-{topics}", text)
    text = text.replace("topics = .*", f"topics = .*-{topics}").replace(_ETC, str(directory))
    for there, here in instead.items():
        assert there in text, there
        text = text.replace(there, here)
    return text
