"""Discovery: finds the topics of a flow, creates and grows remote topics, and reports halts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkmirror.control.topics.dead_letters import create_dead_letter_topics
from sparkmirror.control.topics.remote_names import RemoteNames
from sparkmirror.control.topics.sync import (
    Assignment,
    ObservedTopics,
    apply_topics,
    assign,
    observe_topics,
    passing,
    plan_topics,
)
from sparkmirror.errors import ConfigError, TooFewBrokers
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import TopicView

_TOPICS_SHOWN_MAX = 10
# Less than the time to the next discovery, which asks again.
_PATIENCE_S = 3.0


class Discovery:
    """Discovers the topics of one flow. ``notify`` takes one-line notices for the user.

    ``names``: decides which remote names the topics may have.
    """

    def __init__(
        self,
        settings: FlowSettings,
        source_admin: Cluster,
        target_admin: Cluster,
        wanted: FlowTopics,
        notify: Callable[[str], None],
        names: RemoteNames,
    ) -> None:
        self._settings = settings
        self._source = source_admin
        self._target = target_admin
        self._wanted = wanted
        self._notify = notify
        self._halts_reported: dict[TopicPartition, str] = {}
        self._said: set[str] = set()
        self._names = names
        self._seen: Mapping[str, TopicView] | None = None
        self.unsettled = False
        """Whether the last discovery left something that may succeed soon (`sync.passing`)."""
        self.lacks_brokers = False
        """Whether the target has too few brokers for a topic; one may only be down."""

    def discover(self, *, first: bool, at_start: bool = False, fresh: bool = True) -> Assignment:
        """Discover topics, create and grow remote topics; returns what the flow mirrors now.

        ``first``: nothing is mirrored yet, so if every topic fails, the error of one is raised.
        ``at_start``: this is the process's first discovery; it raises `ConfigError` if a topic
        would get the remote topic of another flow. Later, such topics are left out. ``fresh``: read
        the source's topics; otherwise, those of the last discovery are taken. Raises other
        `MirrorError`.
        """
        control = control_topic(self._settings)
        observed = observe_topics(
            *(self._source, self._target, self._wanted, [control], self._names.settle),
            seen=None if fresh else self._seen,
        )
        self._seen = observed.source
        if at_start:
            self._refuse_merging(observed)
        actions = plan_topics(observed, self._settings, self._wanted)
        # After the first discovery, a run that can mirror nothing ends.
        patience_s = None if first else _PATIENCE_S
        errors, done = apply_topics(self._target, actions, patience_s=patience_s)
        for line in done[:_TOPICS_SHOWN_MAX]:
            self._notify(line)
        if len(done) > _TOPICS_SHOWN_MAX:
            more = len(done) - _TOPICS_SHOWN_MAX
            self._notify(f"{self._target.alias}: {more} more topics created or grown")
        assignment = assign(observed, self._settings, errors, self._wanted)
        if errors and not assignment.partitions and first:
            raise next(iter(errors.values()))  # nothing can be mirrored: the run ends with this
        self._report_halts(assignment)
        remote = {p.topic: p.remote_topic for p in assignment.partitions}
        lacking, lines = create_dead_letter_topics(
            self._target, remote, self._settings, patience_s=patience_s
        )
        left = [*errors.values(), *lacking]
        self.lacks_brokers = any(isinstance(one, TooFewBrokers) for one in left)
        self.unsettled = any(passing(one) and not isinstance(one, TooFewBrokers) for one in left)
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                self._notify(line)
        return assignment

    def _refuse_merging(self, observed: ObservedTopics) -> None:
        if self._names.merging:
            error = observed.refused[min(self._names.merging)]
            raise ConfigError(error.what, where=error.where, do=error.do)

    def _report_halts(self, assignment: Assignment) -> None:
        """One notice per topic and reason, not one per partition and round."""
        told = set()
        for tp, halt in assignment.halted.items():
            if self._halts_reported.get(tp) != halt.reason and (tp.topic, halt.reason) not in told:
                told.add((tp.topic, halt.reason))
                self._notify(
                    f"{self._settings.name}: topic {tp.topic} is not mirrored: {halt.reason}"
                )
        self._halts_reported = {tp: halt.reason for tp, halt in assignment.halted.items()}
