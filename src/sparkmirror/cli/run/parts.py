"""What a run is made of: its options, and the shape of the two parts it composes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sparkmirror.cli.run.quick_check import LookPart, QuickLook
from sparkmirror.cli.shared.errors import EXIT_START_FAILED
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.model import Halt, SlotProgress, TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow

# A drain has ten seconds in all: `END_S` is for the end of Spark and of the control plane.
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
    """How to run a mirror, apart from what it mirrors.

    ``live``: draw the live view; ``None`` = when stdout is a terminal and the format is text.
    ``sigterm_exit_code``: what a drain asked for by SIGTERM ends with.
    ``start_failure_exit_code``: what a failed start ends with.
    ``drain_s``: how long the queries may take to write what they have read.
    ``metrics``: ``HOST:PORT`` for metrics, instead of the file's.
    ``take_over``: take the flows from the processes that mirror them.
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

    @property
    def json_lines(self) -> bool:
        """Whether progress, logs and errors are JSON lines."""
        return self.log_format == "json"


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
    if not _MASTERS.fullmatch(master):
        raise ConfigError(
            f"{master!r} is no Spark master.",
            where="--master",
            do="Write local[N], local[*], spark://host:port, yarn or k8s://https://host:port.",
        )


class FlowPart(Protocol):
    """The pipeline, as ``data.query.FlowRunner`` offers it."""

    def open(self) -> object:
        """Start Spark."""

    def start(self, flows: Iterable[str]) -> None:
        """Start the queries of ``flows`` that do not run, and Spark if it has not been."""

    def stand_by(self, flows: Iterable[str]) -> None:
        """Get the queries of ``flows``, which others mirror, ready; never raises."""

    def active(self) -> bool:
        """Whether any query of a flow that was started still runs."""

    def errors(self) -> tuple[MirrorError, ...]:
        """Why queries failed."""

    def end(self, flow: str, *, grace_s: float) -> bool:
        """After its drain: let the query of ``flow`` rest, and end it; False when all end."""

    def stop(self, *, grace_s: float) -> None:
        """After a drain: let the queries come to rest, then stop Spark and its processes."""

    @property
    def key(self) -> str:
        """The secret that the run shares with its Spark processes, and with nobody else."""

    @property
    def at_rest(self) -> bool:
        """Whether they came to rest in time; known before Spark has stopped."""


class NoFlows:
    """The pipeline of a run that has heartbeats alone: none, and no Spark."""

    key = ""
    at_rest = False

    def open(self) -> None:
        """Nothing to start."""

    def start(self, flows: Iterable[str]) -> None:
        """Nothing to start."""

    def stand_by(self, flows: Iterable[str]) -> None:
        """Nothing to get ready."""

    def active(self) -> bool:
        """It goes on until it is stopped."""
        return not self.at_rest

    def errors(self) -> tuple[MirrorError, ...]:
        """Nothing can fail."""
        return ()

    def end(self, flow: str, *, grace_s: float) -> bool:
        """There is none."""
        return False

    def stop(self, *, grace_s: float) -> None:
        """At rest at once."""
        self.at_rest = True


class AssignmentPart(Protocol):
    """What a flow mirrors, as ``control.topics.sync.Assignment`` tells it."""

    @property
    def halted(self) -> Mapping[TopicPartition, Halt]:
        """Partitions that no slot mirrors, and why."""

    @property
    def remote_topics(self) -> Mapping[str, str]:
        """Remote topic by source topic."""


class ControlPart(Protocol):
    """The control plane, as ``control.loop.ControlLoop`` offers it."""

    def prepare(self) -> None:
        """All work before the first record."""

    def start(self) -> None:
        """Start the background threads."""

    def drain(self) -> None:
        """Tell all slots to finish."""

    def because(self, reason: str) -> None:
        """Why the run is about to end, for the history."""

    def refresh(self) -> None:
        """Look for new topics and partitions now."""

    def progress(self) -> tuple[SlotProgress, ...]:
        """The newest report of each slot."""

    def end_offsets(self, flow: str) -> Mapping[TopicPartition, int]:
        """The newest known source end offsets."""

    def oldest_ms(self, flow: str) -> Mapping[TopicPartition, int]:
        """Timestamp of the oldest record that is not at the target, of partitions behind."""

    def assignment(self, flow: str) -> AssignmentPart:
        """What the flow mirrors at present, and what is halted."""

    def to_go(self, flow: str, seconds: float | None) -> None:
        """Report that the flow needs so long to catch up; None: not known."""

    @property
    def owned(self) -> frozenset[str]:
        """The flows that this process mirrors; of the others it stands by."""

    def standing_by(self, flow: str) -> str:
        """Who mirrors the flow while this process stands by; empty when it is its own."""

    def paused(self, flow: str) -> bool:
        """Whether somebody paused the flow."""

    def draining(self, flow: str) -> bool:
        """Whether the flow's slots were told to finish."""

    def checkpoint_times(self, flow: str) -> CheckpointTimes:
        """How long the flow's checkpoints take."""

    def group_rows(self, flow: str) -> tuple[GroupRow, ...]:
        """How far the consumer groups of the flow's source are behind."""

    def away(self, flow: str) -> str:
        """The cluster of the flow that cannot be reached at present, as ``target B``; or empty."""

    def events(self) -> Sequence[str]:
        """Notices since the last call."""

    def failures(self) -> tuple[MirrorError, ...]:
        """Why flows can never go on."""

    @property
    def leaving(self) -> frozenset[str]:
        """The flows of this process that were told to finish and are still its own."""

    def hand_over(self, name: str) -> None:
        """The slots of flow ``name``, one of `leaving`, have ended: others may mirror it."""

    def drained(self, flow: str) -> bool:
        """Whether the flow has been handed over."""

    def finish(self, *, timeout_s: float) -> None:
        """When the queries have ended in order: the last checkpoints and group offsets."""

    def stop(self) -> None:
        """End the threads and connections."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of; called with the settings and the keywords of the real classes."""

    control: Callable[..., ControlPart]
    flow: Callable[..., FlowPart]
    look: Callable[..., LookPart]

    @classmethod
    def real(cls) -> Parts:
        """Kafka and Spark; imported only here, since it takes a second."""
        from sparkmirror.control.loop import ControlLoop  # noqa: PLC0415
        from sparkmirror.data.query import FlowRunner  # noqa: PLC0415

        return cls(control=ControlLoop, flow=FlowRunner, look=QuickLook)
