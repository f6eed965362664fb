"""Effective settings of MirrorMaker 1's files, with the line of each.

This is `explain` for MirrorMaker 1. An old key is listed under its current name, with its line and
spelling in the file. Keys that no longer have an effect are among the warnings. Keys of MirrorMaker
2 that the files set are listed too, without the defaults of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sparkmirror.config.clients.security import idle_reason
from sparkmirror.config.explain import Effective, ExplainedFile, FlowSetup, Place
from sparkmirror.config.files.origin import Kind
from sparkmirror.config.files.properties import Entry, load_properties
from sparkmirror.config.mm1.legacy import BrokerLookup
from sparkmirror.config.mm1.load import load_mm1, read_file
from sparkmirror.config.mm2.precedence import Part
from sparkmirror.config.table.own import MM1_OWN_ROWS
from sparkmirror.config.table.setting import Scope, Setting, Status
from sparkmirror.config.table.settings import HIDDEN, SETTINGS, redact
from sparkmirror.settings import FlowSettings

__all__ = ["explain_mm1"]


def explain_mm1(
    consumers: Sequence[Path], producer: Path, *, find_brokers: BrokerLookup
) -> ExplainedFile:
    """Read the files as a run does, and return the settings of each flow and its clients.

    Raises the same ConfigError as a run, and the errors of ``find_brokers``.
    """
    look_up = lru_cache(find_brokers)
    settings = load_mm1(consumers, producer, include=".*", find_brokers=look_up)
    target = _Explained(producer, Scope.PRODUCER, Part.PRODUCER, look_up)
    flows = []
    by_cluster: dict[str, tuple[Entry, ...]] = {}
    for path, flow in zip(consumers, settings.flows, strict=True):
        source = _Explained(path, Scope.CONSUMER, Part.CONSUMER, look_up)
        rows = (*_of_both(source, target), *source.rows(), *target.rows())
        secret = source.has_secret_group
        by_cluster |= {flow.source.alias: source.entries, flow.target.alias: target.entries}
        flows.append(FlowSetup(flow.name, tuple(_derived(row, flow, secret) for row in rows)))
    return ExplainedFile(consumers[0], tuple(flows), settings, by_cluster=by_cluster)


def _of_both(consumer: _Explained, producer: _Explained) -> Iterator[Effective]:
    """MirrorMaker 2's keys in the files; the consumer file's override the producer file's."""
    own, shared = consumer.mm2_rows(), producer.mm2_rows()
    for key, row in sorted((shared | own).items()):
        overridden = shared[key].place if key in own and key in shared else None
        yield row if overridden is None else replace(row, overrides=(overridden,))


def _derived(row: Effective, flow: FlowSettings, secret_group: bool) -> Effective:
    """``row``, with a default that MirrorMaker 1 or other settings change."""
    if row.key == "client.id":
        of_group = row.part is Part.CONSUMER or row.origin == Kind.DEFAULT
        if row.value == HIDDEN and not of_group:
            return row
        name = flow.source.client_id if row.part is Part.CONSUMER else flow.target.client_id
        name = HIDDEN if secret_group and of_group else name
        return replace(row, value=name, origin=row.origin if row.value == name else Kind.DERIVED)
    if row.origin != Kind.DEFAULT:
        return row
    adapted = {
        (Part.CONSUMER, "auto.offset.reset"): flow.fetch.auto_offset_reset,
        (Part.PRODUCER, "enable.idempotence"): str(flow.produce.enable_idempotence).lower(),
    }.get((row.part, row.key), row.value)
    return row if adapted == row.value else replace(row, value=adapted, origin=Kind.DERIVED)


class _Explained:
    """One file, translated to current keys."""

    def __init__(self, path: Path, scope: Scope, part: Part, look_up: BrokerLookup) -> None:
        file = load_properties(path)
        self._part = part
        self._scope = scope
        translation, self._mode = read_file(file, scope, look_up)
        self._conf = {**translation.file, **translation.providers}
        self._declared = translation.providers
        self._spelling = {entry.where: key for key, entry in file.items()}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What the client's settings are made from."""
        return tuple(self._conf.values())

    @property
    def has_secret_group(self) -> bool:
        """Whether a config provider gives the group's name, which clients are named after."""
        entry = self._conf.get("group.id")
        return entry is not None and entry.secret

    def rows(self) -> Iterator[Effective]:
        """The client's settings in alphabetical order, then sparkmirror's own."""
        known = [(self._part, row) for row in SETTINGS if self._scope in row.scopes]
        if self._scope is Scope.CONSUMER:
            known += [(Part.OWN, row) for row in MM1_OWN_ROWS]
        for part, row in sorted(known, key=lambda one: (one[0] is Part.OWN, one[1].name)):
            entry = self._conf.get(row.name)
            if entry is not None:
                ignored = row.reason if row.status is not Status.SUPPORTED else self._idle(row.name)
                ignored = "" if row.name in self._declared else ignored
                yield self._given(part, row, entry, ignored)
            elif row.status is Status.SUPPORTED and not self._idle(row.name):
                yield Effective(part, row.name, row.default, Kind.DEFAULT)

    def mm2_rows(self) -> dict[str, Effective]:
        """The rows of MirrorMaker 2's keys in the file, by their current names."""
        return {
            use.setting.name: self._given(Part.FLOW, use.setting, use.entry, use.ignored)
            for use in self._mode.uses
        }

    def _given(self, part: Part, row: Setting, entry: Entry, ignored: str) -> Effective:
        value, remark = redact(row.name, entry.value.strip()), ""
        if entry.secret:
            value, remark = HIDDEN, f"resolved from {', '.join(entry.placeholders)}"
        spelling = self._spelling.get(entry.where)
        if spelling is None:  # a default of the release that the file was written for
            return Effective(part, row.name, value, Kind.DERIVED, remark=entry.where)
        place = Place(entry.where, spelling, f"{self._scope.value} file")
        return Effective(part, row.name, value, Kind.FILE, place, ignored=ignored, remark=remark)

    def _idle(self, name: str) -> str:
        return idle_reason(name, self._conf) if name.startswith(("ssl.", "sasl.")) else ""
