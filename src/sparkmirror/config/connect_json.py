"""Reads MirrorMaker 2's connectors in the JSON formats of Kafka Connect's REST interface.

A file contains one connector (``{"name": …, "config": {…}}``), only its configuration
(``{"connector.class": …}``), a list of these, or the response to ``GET /connectors?expand=info``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkmirror.config.connectors import Connector, ConnectorSetup, connector_kind
from sparkmirror.config.files.documents import Node, load_json
from sparkmirror.config.files.origin import Origin
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.providers import REFERENCE
from sparkmirror.errors import ConfigError

__all__ = ["read_connect"]


def read_connect(paths: Sequence[Path], offset_topic: str) -> ConnectorSetup:
    """Read the connectors of these files. ``offset_topic``: the workers' ``offset.storage.topic``.

    Raises ConfigError with file, line and key.
    """
    setup = ConnectorSetup(f"Kafka Connect's {', '.join(path.name for path in paths)}")
    foreign: list[Entry] = []
    for path in paths:
        for name, config in _configs(load_json(path)):
            entries = _entries(config)
            kind = connector_kind(entries["connector.class"].value)
            if kind:
                setup.connectors.append(_connector(kind, name, config.where, entries))
            else:
                foreign.append(entries["connector.class"])
    for entry in foreign:
        if not setup.connectors:
            raise ConfigError(
                f"{entry.key}={entry.value} is not a MirrorMaker 2 connector.",
                where=entry.where,
                do="Give the files of MirrorSourceConnector, MirrorCheckpointConnector and "
                "MirrorHeartbeatConnector.",
            )
        setup.leave_out(entry, f"{entry.value} is not a MirrorMaker 2 connector")
    for one in setup.connectors:
        setup.offset_topic[one.target] = offset_topic
    setup.remarks += [
        "In Kafka Connect, the worker's own producer writes the records: copy keys that begin with "
        "producer. from the worker's file as TARGET.producer.KEY, and exactly.once.source.support "
        "as TARGET.exactly.once.source.support.",
        "Stop the connectors before the mirror starts, or records arrive twice.",
    ]
    return setup


def _configs(document: Node, name: str = "") -> Iterator[tuple[str, Node]]:
    """Name and configuration of each connector of a document."""
    if isinstance(document.value, list):
        for each in document.items():
            yield from _configs(each)
        return
    table = document.table()
    if "connector.class" in table:
        yield name, document
    elif "config" in table and not isinstance(table["config"].value, str):
        given = document.get("name")
        yield (given.text() if given else name), table["config"]
    elif table and all(isinstance(one.value, dict) for one in table.values()):
        for key, one in table.items():
            yield from _configs(one.get("info") or one, key)
    else:
        raise ConfigError(
            "this is not a connector: connector.class is missing"
            + ("." if not document.path else f" in {document.path}."),
            where=document.where,
            do='Write {"name": …, "config": {"connector.class": …}}, as Kafka Connect accepts it.',
        )


def _entries(config: Node) -> dict[str, Entry]:
    """The keys of a connector as in its file. Raises ConfigError without ``connector.class``."""
    config.need("connector.class")
    return {
        key: Entry(key, node.text(), Origin.in_file(node.where))
        for key, node in config.table().items()
        if node.value is not None
    }


def _connector(kind: str, name: str, where: str, entries: dict[str, Entry]) -> Connector:
    source = entries.get("source.cluster.alias")
    if source is None:
        raise ConfigError(
            "source.cluster.alias is missing.",
            where=where,
            do="Add it: the name of the source cluster.",
        )
    target = entries.get("target.cluster.alias")
    for entry in (source, target):
        if entry is not None and REFERENCE.search(entry.value):
            raise ConfigError(
                f"{entry.key} contains a placeholder.",
                where=entry.where,
                do="Write the alias itself: it is a part of the new file's keys, and placeholders "
                "are resolved only in values.",
            )
    given = entries.get("name")
    return Connector(
        kind,
        name or (given.value.strip() if given else kind),
        source.value.strip(),
        target.value.strip() if target else "target",
        entries,
        where,
    )
