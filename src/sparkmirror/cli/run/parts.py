"""The parts of a run: its options, and the protocols of pipeline and control plane."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sparkmirror.cli.run.quick_check import QuickCheckPart, QuickCheckThread
from sparkmirror.cli.shared.errors import EXIT_START_FAILED
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.internal_topics.tables import TableState
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.observe.figures.queries import QueryFigures
from sparkmirror.observe.figures.throttling import ThrottleFigures
from sparkmirror.progress import Halt, SlotProgress

# A drain takes ten seconds at most; `END_S` of it is for stopping Spark and the control plane.
DRAIN_S = 6.5
END_S = 3.5

_MASTERS = re.compile(
    r"local(?:\[(?:[1-9]\d*|\*)(?:\s*,\s*[1-9]\d*)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^\s,/]+:\d+(?:,[^\s,/]+:\d+)*"
    r"|k8s://\S+"
)
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a mirror; what it mirrors is in `MirrorSettings`.

    ``live``: draw the live view; ``None``: only when stdout is a terminal and the format is text.
    ``sigterm_exit_code``: the exit code of a drain that SIGTERM started.
    ``start_failure_exit_code``: the exit code of a failed start.
    ``drain_s``: seconds that the queries may take to write what they have read.
    ``metrics``: ``HOST:PORT`` of the metrics server; overrides the file.
    ``take_over``: take over the flows from the processes that mirror them. ``ui``: show Spark's
    page on this machine. ``option_prefix``: how the options of Spark's master and of metrics begin,
    for errors; the commands with a prefix have no options for the work directory and the log file.
    """

    master: str = "local[*]"
    once: bool = False
    debug: bool = False
    log_format: str = "text"
    log_file: Path | None = None
    interval_s: float = 5.0
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    work_dir: Path | None = None
    live: bool | None = None
    sigterm_exit_code: int = 0
    start_failure_exit_code: int = EXIT_START_FAILED
    drain_s: float = DRAIN_S
    metrics: str = ""
    take_over: bool = False
    ui: bool = False
    option_prefix: str = ""

    @property
    def json_lines(self) -> bool:
        """Whether progress, logs and errors are JSON lines."""
        return self.log_format == "json"


def check_master(
    master: str, environment: Mapping[str, str] | None = None, *, option: str = "--master"
) -> None:
    """Raise `ConfigError` for an invalid Spark master, or for YARN without its configuration."""
    master = master.strip()
    if master == "yarn":
        named = os.environ if environment is None else environment
        places = {name: named[name] for name in _HADOOP if named.get(name)}
        if any(Path(place).is_dir() for place in places.values()):
            return
        said = ", ".join(f"{name}={place} is not a directory" for name, place in places.items())
        raise ConfigError(
            f"Spark cannot find YARN: {said or ' and '.join(_HADOOP) + ' are not set'}.",
            where=f"{option} yarn",
            do="Set HADOOP_CONF_DIR to the directory with yarn-site.xml and core-site.xml.",
        )
    if not _MASTERS.fullmatch(master):
        raise ConfigError(
            f"{master!r} is not a Spark master.",
            where=option,
            do="Write local[N], local[*], spark://host:port, yarn or k8s://https://host:port.",
        )


class FlowPart(Protocol):
    """The pipeline; ``data.query.FlowRunner`` implements it."""

    def open(self) -> object:
        """Start Spark."""

    def start(self, flows: Iterable[str]) -> None:
        """Start the queries of ``flows`` that are not running, and Spark if it is not running."""

    def stand_by(self, flows: Iterable[str]) -> None:
        """Prepare the queries of ``flows``, which other processes mirror; never raises."""

    def active(self) -> bool:
        """Whether any query of a flow that was started still runs."""

    def errors(self) -> tuple[MirrorError, ...]:
        """Why queries failed."""

    def figures(self) -> Mapping[str, QueryFigures]:
        """What Spark reports about the queries, by flow."""

    def tables(self, flow: str) -> tuple[TableState, ...]:
        """The static tables of ``flow``."""

    def reload_tables(self, flow: str, table: str = "") -> tuple[TableState, ...]:
        """Read ``table`` of ``flow`` again, or all of them."""

    def end(self, flow: str, *, grace_s: float) -> bool:
        """After its drain: wait for the query of ``flow``, then end it; False when all end."""

    def stop(self, *, grace_s: float) -> None:
        """After a drain: wait up to ``grace_s`` for the queries, then stop Spark."""

    @property
    def page(self) -> str:
        """How to reach Spark's page, once it is open; empty without one."""

    @property
    def key(self) -> str:
        """The secret that only the run and its Spark processes share."""

    @property
    def at_rest(self) -> bool:
        """Whether no query runs any more; known before Spark has stopped."""


class NoFlows:
    """The pipeline of a run that only emits heartbeats: no queries, and no Spark."""

    key = ""
    page = ""
    at_rest = False

    def open(self) -> None:
        """Nothing to start."""

    def start(self, flows: Iterable[str]) -> None:
        """Nothing to start."""

    def stand_by(self, flows: Iterable[str]) -> None:
        """Nothing to prepare."""

    def active(self) -> bool:
        """True until `stop`."""
        return not self.at_rest

    def errors(self) -> tuple[MirrorError, ...]:
        """Nothing can fail."""
        return ()

    def figures(self) -> Mapping[str, QueryFigures]:
        """Nothing runs in Spark."""
        return {}

    def tables(self, flow: str) -> tuple[TableState, ...]:
        """None."""
        return ()

    def reload_tables(self, flow: str, table: str = "") -> tuple[TableState, ...]:
        """Nothing to read."""
        return ()

    def end(self, flow: str, *, grace_s: float) -> bool:
        """False: there is no query to end."""
        return False

    def stop(self, *, grace_s: float) -> None:
        """Finished at once."""
        self.at_rest = True


class AssignmentPart(Protocol):
    """What a flow mirrors; ``control.topics.sync.Assignment`` implements it."""

    @property
    def sources(self) -> frozenset[TopicPartition]:
        """The partitions that slots mirror."""

    @property
    def halted(self) -> Mapping[TopicPartition, Halt]:
        """Partitions that no slot mirrors, and why."""

    @property
    def remote_topics(self) -> Mapping[str, str]:
        """Remote topic by source topic."""


class ControlPart(Protocol):
    """The control plane; ``control.loop.ControlLoop`` implements it."""

    def prepare(self) -> None:
        """Do all work that must precede the first record."""

    def start(self) -> None:
        """Start the background threads."""

    def drain(self) -> None:
        """Order all slots to drain."""

    def note_reason(self, reason: str) -> None:
        """Note for the history why the run is about to end."""

    def refresh(self) -> None:
        """Look for new topics and partitions now."""

    def take_reports(self) -> tuple[SlotProgress, ...]:
        """The reports since the last call, of each task of a slot the newest, as they came."""

    def end_offsets(self, flow: str) -> Mapping[TopicPartition, int]:
        """The newest known source end offsets."""

    def ends_age_s(self, flow: str) -> float | None:
        """Seconds since the source told the end of each partition; None if none are asked for."""

    def oldest_ms(self, flow: str) -> Mapping[TopicPartition, int]:
        """Epoch milliseconds of the oldest record not yet at the target, per lagging partition."""

    def assignment(self, flow: str) -> AssignmentPart:
        """What the flow mirrors now, and what is halted."""

    def to_go(self, flow: str, seconds: float | None) -> None:
        """Publish the estimated seconds until the flow has caught up; None: unknown."""

    @property
    def owned(self) -> frozenset[str]:
        """The flows that this process mirrors; it is a standby for the others."""

    def standing_by(self, flow: str) -> str:
        """Which process mirrors the flow while this one is a standby; empty if it owns the flow."""

    def paused(self, flow: str) -> bool:
        """Whether the flow was paused by an order."""

    def deals(self, flow: str) -> DealFigures:
        """What deals of the flow's partitions have done."""

    def throttle(self, flow: str) -> ThrottleFigures:
        """What the flow's limits do."""

    def tables(self, flow: str) -> tuple[TableState, ...]:
        """The static tables of the flow's transforms."""

    def draining(self, flow: str) -> bool:
        """Whether the flow's slots were ordered to drain."""

    def checkpoint_times(self, flow: str) -> CheckpointTimes:
        """Checkpoint latencies of the flow."""

    def group_rows(self, flow: str) -> tuple[GroupRow, ...]:
        """Lag of the consumer groups at the flow's source."""

    def unreachable_cluster(self, flow: str) -> str:
        """The flow's cluster that is unavailable now, as ``target B``; empty if both respond."""

    def events(self) -> Sequence[str]:
        """Notices since the last call."""

    def failures(self) -> tuple[MirrorError, ...]:
        """The errors of flows that cannot continue."""

    @property
    def leaving(self) -> frozenset[str]:
        """The flows of this process that are draining alone and not yet handed over."""

    def hand_over(self, name: str) -> None:
        """Give up flow ``name``, one of `leaving`, whose slots have ended; others may mirror it."""

    def drained(self, flow: str) -> bool:
        """Whether the flow has been handed over."""

    def finish(self, *, timeout_s: float) -> None:
        """After the queries have ended normally: write the last checkpoints and group offsets."""

    def stop(self) -> None:
        """End the threads and connections."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Factories of a run's parts; called with the settings and the real classes' keywords."""

    control: Callable[..., ControlPart]
    flow: Callable[..., FlowPart]
    quick_check: Callable[..., QuickCheckPart]

    @classmethod
    def real(cls) -> Parts:
        """The parts for Kafka and Spark. Each is loaded when it is made, which takes a while."""

        def control(*arguments: Any, **named: Any) -> ControlPart:
            from sparkmirror.control.loop import ControlLoop  # noqa: PLC0415

            return ControlLoop(*arguments, **named)

        def flow(*arguments: Any, **named: Any) -> FlowPart:
            from sparkmirror.data.query import FlowRunner  # noqa: PLC0415

            return FlowRunner(*arguments, **named)

        return cls(control=control, flow=flow, quick_check=QuickCheckThread)
