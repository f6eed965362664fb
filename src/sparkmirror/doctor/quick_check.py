"""The quick check: the doctor's checks during the start of a run.

It neither stops nor delays the run. The networks are checked while Spark starts. Clocks, groups and
topics are checked once the control plane has started. What the control plane itself reports (a
failed start, topics that cannot be created) is not reported again. Checks that exceed the time
limit are left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from sparkmirror.control.topics.config_sync import wanted_changes
from sparkmirror.doctor import rights
from sparkmirror.doctor.clocks import check_clock
from sparkmirror.doctor.compare import ONE_REPLICA, compare_topics
from sparkmirror.doctor.facts import Pair, observe_source, observe_target, pairs
from sparkmirror.doctor.finding import Finding, Level, gathered
from sparkmirror.doctor.jobs import at_once
from sparkmirror.doctor.network import Network, explore, path_key
from sparkmirror.errors import MirrorError
from sparkmirror.model import MirrorMode
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.cluster.views import ConfigEntry
from sparkmirror.wire.probe.broker_path import Resolver, resolve

__all__ = ["LIMIT_S", "QuickCheck", "in_step"]

# Healthy clusters respond within a second; a result of a busy one is useful even later.
LIMIT_S = 15.0
_NETWORK_S = 4.0
_SHOWN_MAX = 12
_TOPICS_MAX = 500
_OWN = "DYNAMIC_TOPIC_CONFIG"
_COMPARED = frozenset({"replication", "message-size"})

_log = logging.getLogger(__name__)


class QuickCheck:
    """The quick check of all enabled flows of ``settings``, in two parts of at most `LIMIT_S` each.

    ``notify`` takes lines for the user. ``begun`` waits until the clusters respond and the topics
    are created; False: the run has ended before. ``resolver`` and ``now_s``: see `Examination`.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        notify: Callable[[str], None],
        begun: Callable[[], bool],
        *,
        resolver: Resolver = resolve,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._flows = [flow for flow in settings.flows if flow.enabled]
        self._notify = notify
        self._begun = begun
        self._resolver = resolver
        self._now_s = now_s
        self._reported = 0

    def run(self) -> None:
        """Run the whole quick check. Raises nothing but defects."""
        clients: dict[str, ClusterClient] = {}
        for flow in self._flows:
            for client in (flow.source, flow.target, flow.source_admin, flow.target_admin):
                clients.setdefault(path_key(client), client)
        networks = self._networks(clients)
        # If a cluster cannot be used at all, the control plane reports it and the run ends.
        usable = [network for network in networks.values() if network.usable]
        self._report(one for network in usable for one in network.findings)
        if not self._begun():
            return
        # The run has started nevertheless, so nobody has reported these yet.
        others = [network for network in networks.values() if not network.usable]
        self._report(one for network in others for one in network.findings)
        inspectors = {
            way: Inspector(Cluster(replace(client, request_timeout_ms=int(LIMIT_S * 1000))))
            for way, client in clients.items()
        }
        try:
            self._check_clusters(inspectors)
        finally:
            for one in inspectors.values():
                # Closed on a thread, because an abandoned check may hold its lock.
                threading.Thread(target=one.cluster.close, daemon=True).start()
        if self._reported:
            self._notify(_closing(self._reported))

    def _networks(self, clients: Mapping[str, ClusterClient]) -> dict[str, Network]:
        found = at_once(
            {
                way: partial(explore, client, timeout_s=_NETWORK_S, resolver=self._resolver)
                for way, client in clients.items()
            },
            time.monotonic() + LIMIT_S,
        )
        return {way: one for way, one in found.items() if isinstance(one, Network)}

    def _check_clusters(self, inspectors: Mapping[str, Inspector]) -> None:
        """Check clocks of all clusters; groups, topics and permissions of all flows."""
        jobs: dict[str, Callable[[], object]] = {}
        for one in {each.alias: each for each in inspectors.values()}.values():
            jobs[f"clock {one.alias}"] = partial(check_clock, one, self._now_s)
        for flow in self._flows:
            source = inspectors[path_key(flow.source_admin)]
            target = inspectors[path_key(flow.target_admin)]
            reader = inspectors[path_key(flow.source)]
            writer = inspectors[path_key(flow.target)]
            keeper = reader if flow.mode is MirrorMode.MM1 else writer
            jobs[f"group {flow.name}"] = partial(rights.check_group, keeper, flow)
            jobs[f"topics {flow.name}"] = partial(
                _check_topics, flow, source, target, reader=reader, writer=writer
            )
        results = at_once(jobs, time.monotonic() + LIMIT_S)
        for name in jobs:
            result = results.get(name)
            if isinstance(result, list):
                self._report(result)
            else:
                _log.info("quick check: %s: %s", name, result or f"no result in {LIMIT_S:g} s")

    def _report(self, found: Iterable[Finding]) -> None:
        bad = [one for one in found if one.level in (Level.WARN, Level.FAIL)]
        for one in gathered(bad):
            self._reported += 1
            line = f"quick check: {one.subject}: {one.found}. {one.do}"
            _log.info("%s", line)
            if self._reported <= _SHOWN_MAX:
                self._notify(line)


def _check_topics(
    flow: FlowSettings,
    source: Inspector,
    target: Inspector,
    *,
    reader: Inspector,
    writer: Inspector,
) -> list[Finding]:
    """Compare mirrored topics with their remote topics, and check permissions to read and write.

    Raises `MirrorError`.
    """
    topics = observe_source(source.cluster, flow, topics_max=_TOPICS_MAX)
    there = observe_target(target, flow, topics, try_missing=False)
    both = [in_step(flow, pair) for pair in pairs(flow, topics, there) if pair.present]
    brokers = len(there.cluster.brokers)
    found = [
        one
        for one in compare_topics(flow, both, brokers)
        if one.check in _COMPARED and not one.found.startswith(ONE_REPLICA)
    ]
    try:
        found += rights.check_read(reader, flow, topics)
        found += rights.check_write(writer, flow, topics)
    except MirrorError as error:
        _log.info("quick check: rights of %s: %s", flow.name, error)
    return found


def in_step(flow: FlowSettings, pair: Pair) -> Pair:
    """``pair`` as it is after the config sync has set ``max.message.bytes``, if it does."""
    name = "max.message.bytes"
    changes = wanted_changes(pair.source_configs, flow)
    if flow.mode is MirrorMode.MM1 or not flow.topics.sync_configs_enabled or name not in changes:
        return pair
    value, configs = changes[name], dict(pair.target_configs)
    if value is not None:
        configs[name] = ConfigEntry(value, _OWN)
    elif name in configs and configs[name].source == _OWN:
        del configs[name]  # it is reset to a default that is unknown here
    return replace(pair, target_configs=configs)


def _closing(reported: int) -> str:
    more = f", {reported - _SHOWN_MAX} of them in the log" if reported > _SHOWN_MAX else ""
    return (
        f"quick check: {reported} to look at{more}. The mirror continues, and retries what fails; "
        "sparkmirror doctor checks everything."
    )
