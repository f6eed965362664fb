"""Reads the configs of many topics from DescribeConfigs responses with little work per topic.

Thousands of topics have the same few configs. The bytes of a structure determine its length, so a
structure that begins with all bytes of a known one equals it. `ConfigReader` compares the configs
of each topic with those of the topic before, as a whole and then one by one. It decodes only what
differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeConfigsRequest

from sparkmirror.wire.admin.raw_responses import RawResponse, ResponseReader, undecoded
from sparkmirror.wire.cluster.views import ConfigEntry

__all__ = ["ConfigReader", "TopicConfigs", "config_entry", "describe_configs_request"]

_UndecodedRequest = undecoded(DescribeConfigsRequest)
_TOPIC_RESOURCE = 2
_THROTTLE_BYTES = 4
_FLEXIBLE_FROM = 4
_REMEMBERED_BYTES_MAX = 8 << 20
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}
_TOPIC_SOURCE, _DEFAULT_SOURCE = 1, 5


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """A topic's configs, or the error code (0: none) and message for this topic."""

    topic: str
    error_code: int
    error_message: str | None
    configs: Mapping[str, ConfigEntry]


class _Known(NamedTuple):
    """One config and the bytes that it was read from."""

    data: bytes
    name: str
    entry: ConfigEntry


def describe_configs_request(topics: Sequence[str]) -> Any:
    """A request for all configs of ``topics``, whose response is a `RawResponse`."""
    row = DescribeConfigsRequest.DescribeConfigsResource
    return _UndecodedRequest(
        resources=[
            row(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
            for name in topics
        ]
    )


# Thousands of topics have the same few configs: they share the entries.
@lru_cache(maxsize=4_096)
def config_entry(
    value: str | None, config_source: int, read_only: bool, sensitive: bool
) -> ConfigEntry:
    """The entry for a config; ``config_source``: Kafka's number for the source of its value."""
    source = _SOURCES.get(config_source, "UNKNOWN")
    return ConfigEntry(
        value=value,
        source=source,
        is_default=source == "DEFAULT_CONFIG",
        read_only=read_only,
        sensitive=sensitive,
    )


class ConfigReader:
    """Reads responses. Topics with the same configs share one mapping.

    The cache between responses is cleared when it gets too large.
    """

    def __init__(self) -> None:
        self._kinds: dict[bytes, Mapping[str, ConfigEntry]] = {}
        self._size = 0

    def read(self, raw: RawResponse) -> list[TopicConfigs]:
        """The topics in ``raw``. Raises an error of `kafka_python_limits.UNREADABLE`."""
        reader = ResponseReader(raw.data, _THROTTLE_BYTES, flexible=raw.version >= _FLEXIBLE_FROM)
        found: list[TopicConfigs] = []
        block = b""
        before: list[_Known] = []
        for _ in range(reader.count()):
            code, message = reader.int16(), reader.text()
            reader.int8()
            name = reader.name()
            if block and raw.data.startswith(block, reader.at):
                reader.at += len(block)
            else:
                start = reader.at
                before = _settings(reader, raw.version, before)
                block = raw.data[start : reader.at]
            found.append(TopicConfigs(name, code, message, self._kind(block, before)))
            reader.skip_tags()
        reader.skip_tags()
        return found

    def _kind(self, block: bytes, settings: Sequence[_Known]) -> Mapping[str, ConfigEntry]:
        known = self._kinds.get(block)
        if known is None:
            if self._size + len(block) > _REMEMBERED_BYTES_MAX:
                self._kinds, self._size = {}, 0
            known = MappingProxyType({one.name: one.entry for one in settings})
            self._kinds[block] = known
            self._size += len(block)
        return known


def _settings(reader: ResponseReader, version: int, before: Sequence[_Known]) -> list[_Known]:
    """The configs of one topic; ``before``: those of the topic before it."""
    found: list[_Known] = []
    data = reader.data
    for number in range(reader.count()):
        if number < len(before) and data.startswith(before[number].data, reader.at):
            known = before[number]
            reader.at += len(known.data)
        else:
            start = reader.at
            name, entry = _setting(reader, version)
            known = _Known(data[start : reader.at], name, entry)
        found.append(known)
    return found


def _setting(reader: ResponseReader, version: int) -> tuple[str, ConfigEntry]:
    name, value, read_only = reader.name(), reader.text(), reader.boolean()
    source = reader.int8()
    if version == 0:  # it has "is it a default" here instead
        source = _DEFAULT_SOURCE if source else _TOPIC_SOURCE
    sensitive = reader.boolean()
    if version >= 1:
        for _ in range(reader.count()):  # synonyms
            reader.name(), reader.text(), reader.int8()
            reader.skip_tags()
    if version >= 3:
        reader.int8(), reader.text()  # type and documentation
    reader.skip_tags()
    return name, config_entry(value, source, read_only, sensitive)
