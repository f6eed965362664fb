"""ACL sync: adds the ACLs of source topics to their remote topics.

The rules are those of MirrorMaker 2 4.3 (``MirrorSourceConnector``): bindings are added, never
removed, and no binding allows writing to a remote topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sparkmirror.control.topics.notices import Notices, first_few
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import AclBinding

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservedAcls:
    """All ACLs on topics of both clusters; None for a cluster without an authorizer."""

    source: tuple[AclBinding, ...] | None
    target: tuple[AclBinding, ...] | None


def observe_acls(source: Cluster, target: Cluster) -> ObservedAcls:
    """Read the topic ACLs of the source and, if it has any, of the target. Raises `MirrorError`.

    As long as the ACLs of a cluster have not changed, its tuple is the same object.
    """
    found = source.topic_acls()
    return ObservedAcls(found, target.topic_acls(operation="Alter") if found else ())


def wanted_acls(
    source: Iterable[AclBinding], topics: FlowTopics, mirrored: Container[str] | None = None
) -> Iterator[AclBinding]:
    """The bindings that MirrorMaker 2 creates on the target for the bindings ``source``. Pure.

    Only literal bindings on mirrored topics count. ALLOW WRITE is left out, ALLOW ALL becomes
    ALLOW READ. DENY bindings are copied. ``mirrored``: the topics that are mirrored, if some may be
    left out because of their names. Without it, those who may read a topic that is left out could
    read the remote topic of the one that has the name. `unknown_acls` are left out, too.
    """
    for binding in _counting(source, topics, mirrored):
        allowed = binding.permission == "ALLOW"
        if _unknown(binding) or (allowed and binding.operation == "WRITE"):
            continue
        operation = "READ" if allowed and binding.operation == "ALL" else binding.operation
        yield replace(binding, name=topics.remote(binding.name), operation=operation)


def unknown_acls(
    source: Iterable[AclBinding], topics: FlowTopics, mirrored: Container[str] | None = None
) -> tuple[AclBinding, ...]:
    """The bindings of a newer broker that this version cannot write. Pure.

    Arguments as for `wanted_acls`.
    """
    return tuple(filter(_unknown, _counting(source, topics, mirrored)))


def _counting(
    source: Iterable[AclBinding], topics: FlowTopics, mirrored: Container[str] | None
) -> Iterator[AclBinding]:
    for binding in source:
        if (
            binding.resource_type == "TOPIC"
            and binding.pattern == "LITERAL"
            and topics.accepts(binding.name)
            and (mirrored is None or binding.name in mirrored)
        ):
            yield binding


def _unknown(binding: AclBinding) -> bool:
    return "UNKNOWN" in (binding.operation, binding.permission)


def plan_acls(
    observed: ObservedAcls, topics: FlowTopics, mirrored: Container[str] | None = None
) -> tuple[AclBinding, ...]:
    """The bindings that the target lacks, in the source's order; see `wanted_acls`. Pure."""
    if observed.source is None or observed.target is None:
        return ()
    present = set(observed.target)
    wanted = dict.fromkeys(wanted_acls(observed.source, topics, mirrored))
    return tuple(binding for binding in wanted if binding not in present)


def _same(one: ObservedAcls, other: ObservedAcls) -> bool:
    return one.source is other.source and one.target is other.target


class AclSync:
    """The ACL sync of one flow. ``notify`` takes notices for the user.

    ``mirrored``: returns the topics that are mirrored; None if the topic lists alone decide.
    """

    def __init__(
        self,
        flow: FlowSettings,
        source: Cluster,
        target: Cluster,
        topics: FlowTopics,
        notify: Callable[[str], None],
        mirrored: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._topics = topics
        self._notify = notify
        self._notices = Notices(notify)
        self._mirrored = mirrored
        self._in_step: tuple[ObservedAcls, frozenset[str] | None] | None = None

    def round(self) -> None:
        """Compare once, and add missing ACLs. An ACL that cannot be created becomes a notice.

        Raises `MirrorError` if a cluster does not respond or denies the request.
        """
        observed, mirrored = observe_acls(self._source, self._target), self._mirrored()
        known = self._in_step
        if known is not None and _same(known[0], observed) and known[1] == mirrored:
            return
        missing = plan_acls(observed, self._topics, mirrored)
        outcomes = self._target.create_acls(missing)
        self._report_added(
            [one for one, error in zip(missing, outcomes, strict=True) if error is None]
        )
        failed = [
            (str(one), f"{self._flow.name}: {error}")
            for one, error in zip(missing, outcomes, strict=True)
            if error is not None
        ]
        left_out = self._not_copied(observed, mirrored)
        self._notices.replace([*self._without_authorizer(observed), *left_out, *failed])
        # Unchanged ACLs that were in sync are not compared again: there may be thousands.
        self._in_step = None if missing else (observed, mirrored)

    def _report_added(self, added: Sequence[AclBinding]) -> None:
        alias = self._target.alias
        for binding in added:
            log.info("%s: added the ACL: %s", alias, binding)
        if added:
            names = first_few(list(dict.fromkeys(binding.name for binding in added)))
            self._notify(f"{alias}: ACLs added to {names}")

    def _not_copied(
        self, observed: ObservedAcls, mirrored: frozenset[str] | None
    ) -> Iterator[tuple[str, str]]:
        found = unknown_acls(observed.source or (), self._topics, mirrored)
        if found and observed.target is not None:
            count = "1 ACL is" if len(found) == 1 else f"{len(found)} ACLs are"
            yield (
                "unknown",
                f"{self._flow.name}: {count} not copied, because their operation or type is not "
                f"known here: {first_few([str(one) for one in found])}",
            )

    def _without_authorizer(self, observed: ObservedAcls) -> Iterator[tuple[str, str]]:
        for acls, cluster in ((observed.source, self._source), (observed.target, self._target)):
            if acls is None:
                yield (
                    cluster.alias,
                    f"{self._flow.name}: topic ACLs are not synchronised: {cluster.alias} has no "
                    "authorizer. sync.topic.acls.enabled=false switches this notice off",
                )
