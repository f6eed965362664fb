"""Finds valid keys of a MirrorMaker 2 file that have no effect in any of its flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sparkmirror.config.mm2.keys import KeyUse
from sparkmirror.config.mm2.scoping import Conf
from sparkmirror.config.mm2.smts import unlisted
from sparkmirror.config.table.own import (
    HASH_SALT,
    REGISTRY,
    RING,
    ROUTED_CREATE,
    ROUTED_MAX,
    TRANSFORMS,
    transform_option,
)
from sparkmirror.config.table.settings import Scope, Status
from sparkmirror.config.table.settings_clients import FETCH_ROWS
from sparkmirror.settings import FlowSettings, HeartbeatSettings

_NO_SYNCS_THERE = "no offset syncs are written to that cluster"
_NOT_EXACT = "only exactly-once writes in transactions (B.exactly.once.source.support=enabled)"
_NO_RING = "a transform is between source and sink"
_NO_LIMIT = "no flow has a rate that it would apply to (sparkmirror.throttle)"
_FETCH = frozenset(row.name for row in FETCH_ROWS)
_TRANSACTIONS = frozenset(
    {
        "transaction.timeout.ms",
        "sparkmirror.transaction.interval.ms",
        "sparkmirror.transaction.commit.percent",
        "sparkmirror.transaction.bytes",
    }
)

Reason = Callable[[KeyUse], str]


def idle(
    uses: Iterable[KeyUse],
    enabled: Sequence[tuple[str, str]],
    flows: Sequence[FlowSettings],
    heartbeats: Iterable[HeartbeatSettings],
    confs: Mapping[str, Conf],
) -> list[KeyUse]:
    """``uses``, with keys that no flow uses marked as ignored.

    ``enabled``: all pairs (source, target) that the file enables; ``flows``, ``heartbeats``: those
    of this run. ``confs``: the configuration of each flow's source connector. Pure.
    """
    reasons = (
        _syncs(flows),
        _role(enabled, flows, heartbeats),
        _transactions(flows),
        _windows(flows),
        _ring(flows),
        _transforms(flows),
        _smts(confs),
    )
    return [_marked(use, reasons) for use in uses]


def _marked(use: KeyUse, reasons: Iterable[Reason]) -> KeyUse:
    if use.ignored or use.setting.status is not Status.SUPPORTED:
        return use
    return replace(use, ignored=next(filter(None, (reason(use) for reason in reasons)), ""))


def _transforms(flows: Iterable[FlowSettings]) -> Reason:
    """Reason for keys of a transform that no flow has, and for what nothing uses without one."""
    used = {one.name for flow in flows for one in flow.transforms}
    routes = any(one.routes for flow in flows for one in flow.transforms)

    def reason(use: KeyUse) -> str:
        if use.setting.name.startswith((HASH_SALT, REGISTRY)) and not used:
            return f"no flow has a transform ({TRANSFORMS})"
        if use.setting.name in (ROUTED_CREATE, ROUTED_MAX) and not routes:
            return "no flow routes records by their content (select = … AS topic)"
        name, _ = transform_option(use.entry.key)
        return f"no flow has a transform {name} ({TRANSFORMS})" if name not in {"", *used} else ""

    return reason


def _smts(confs: Mapping[str, Conf]) -> Reason:
    """Reason for keys of SMTs and predicates that a flow's lists do not name."""
    why = {entry.key: reason for conf in confs.values() for entry, reason in unlisted(conf)}
    return lambda use: why.get(use.entry.key, "") if use.family else ""


def _syncs(flows: Iterable[FlowSettings]) -> Reason:
    """Reason for keys of the offset-syncs producer of a side where no offset syncs are written."""
    written = {
        (flow.name, f"{flow.offset_syncs.location}.producer.")
        for flow in flows
        if flow.offset_syncs.enabled
    }

    def reason(use: KeyUse) -> str:
        side = _syncs_side(use)
        return _NO_SYNCS_THERE if side and (use.flow, side) not in written else ""

    return reason


def _syncs_side(use: KeyUse) -> str:
    """The key's prefix if only the offset-syncs producer reads it; ``""`` for other keys."""
    name = use.entry.key.removeprefix(use.flow + ".") if use.flow else ""
    return next((p for p in ("source.producer.", "target.producer.") if name.startswith(p)), "")


def _role(
    enabled: Sequence[tuple[str, str]],
    flows: Iterable[FlowSettings],
    heartbeats: Iterable[HeartbeatSettings],
) -> Reason:
    """Reason for keys of a role that the cluster has in no flow."""
    sources = {source for source, _ in enabled}
    targets = {target for _, target in enabled}
    # The control plane reads checkpoints with its own fetch settings.
    consumers = sources | {flow.target.alias for flow in flows if flow.checkpoints.enabled}
    producers = targets | {beat.target.alias for beat in heartbeats}
    producers |= {
        flow.source.alias
        for flow in flows
        if flow.offset_syncs.enabled and flow.offset_syncs.location == "source"
    }

    def reason(use: KeyUse) -> str:
        if not use.alias:
            return ""
        name = use.entry.key.removeprefix(use.alias + ".")
        role, busy = "target", targets
        if name.startswith("consumer."):
            role, busy = "source", sources if use.setting.name in _FETCH else consumers
        elif name.startswith("producer."):
            busy = targets if use.setting.name in _TRANSACTIONS else producers
        elif use.setting.scopes != (Scope.WORKER,):
            return ""
        if use.alias in busy:
            return ""
        return f"cluster '{use.alias}' is the {role} of no enabled flow"

    return reason


def _transactions(flows: Iterable[FlowSettings]) -> Reason:
    """Reason for transaction keys where no transactions are written."""
    exact = [flow for flow in flows if flow.exactly_once]

    def reason(use: KeyUse) -> str:
        if use.setting.name not in _TRANSACTIONS:
            return ""
        mine = (
            flow
            for flow in exact
            if use.flow in ("", flow.name) and use.alias in ("", flow.target.alias)
        )
        return "" if any(mine) else _NOT_EXACT

    return reason


def _windows(flows: Iterable[FlowSettings]) -> Reason:
    """Reason for the daily window of a limit where there is no limit."""
    limited = {flow.name for flow in flows if any(not rule.topics for rule in flow.throttles)}

    def reason(use: KeyUse) -> str:
        if use.setting.name != "sparkmirror.throttle.between":
            return ""
        return "" if limited & ({use.flow} if use.flow else limited) else _NO_LIMIT

    return reason


def _ring(flows: Sequence[FlowSettings]) -> Reason:
    """Reason for the ring where Spark needs all rows."""
    without = {flow.name for flow in flows if flow.ring and not flow.uses_ring}
    used = any(flow.uses_ring for flow in flows)

    def reason(use: KeyUse) -> str:
        if use.setting.name != RING or not without:
            return ""
        idle_there = use.flow in without if use.flow else not used
        return _NO_RING if idle_there else ""

    return reason
