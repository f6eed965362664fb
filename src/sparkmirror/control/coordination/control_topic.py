"""The driver's reader and writer of the control topic.

`internal_topics.commands` describes its records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkmirror.internal_topics.assignments import (
    ASSIGNMENT_KEY,
    AssignmentCollector,
    AssignmentDocument,
    encode_assignment,
)
from sparkmirror.internal_topics.codec import text
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    PROGRESS_PARTITION,
    Command,
    decode_command,
    encode_command,
)
from sparkmirror.internal_topics.deals.record import (
    DealRecord,
    deal_key,
    decode_deal,
    encode_deal,
    flow_of,
)
from sparkmirror.internal_topics.driver_report import (
    DriverReport,
    decode_driver_report,
    encode_driver_report,
)
from sparkmirror.internal_topics.epochs.record import is_epoch_key
from sparkmirror.internal_topics.epochs.releases import Release, decode_release
from sparkmirror.internal_topics.flow_claims import Standby, decode_claim, decode_standby
from sparkmirror.internal_topics.history import is_event_key
from sparkmirror.internal_topics.reports import (
    Planned,
    ReportCollector,
    decode_piece,
    decode_planned,
    decode_progress,
    record_names,
)
from sparkmirror.internal_topics.routed_topics import (
    RoutedTopics,
    TopicRequest,
    decode_request,
    encode_routed,
    is_routed_key,
)
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.internal_topics.throttles import Limits, encode_limits, is_limits_key
from sparkmirror.progress import SlotProgress
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.topic_reader import TopicTail

__all__ = ["ControlSignals", "ControlTopicReader", "ControlTopicWriter"]


@dataclass(frozen=True, slots=True)
class ControlSignals:
    """The signals of one poll of the control topic.

    ``skipped``: number of records that could not be read as a signal. ``standbys``: the newest
    record of each standby that has not removed it.
    """

    commands: tuple[Command, ...] = ()
    assignments: tuple[AssignmentDocument, ...] = ()
    progress: tuple[SlotProgress, ...] = ()
    drivers: tuple[DriverReport, ...] = ()
    skipped: int = 0
    planned: tuple[Planned, ...] = ()
    standbys: tuple[Standby, ...] = ()
    requests: tuple[TopicRequest, ...] = ()
    deals: tuple[DealRecord, ...] = ()
    releases: tuple[Release, ...] = ()


class ControlTopicReader:
    """Follows one control topic without a consumer group. For one thread.

    Reads from the start of the log. With ``only_new``, reports are read only from now on.
    ``topic`` must exist. ``signer``: the releases that it has not signed are skipped; None: none.
    """

    def __init__(
        self, cluster: Cluster, topic: str, *, only_new: bool = False, signer: Signer | None = None
    ) -> None:
        self._signer = signer
        only_from_now = (PROGRESS_PARTITION,) if only_new else ()
        self._tail: TopicTail = cluster.tail(topic, only_new=only_from_now, passes=True)
        self._collectors: dict[str, AssignmentCollector] = {}
        self._reports = ReportCollector()

    def poll(self, timeout_ms: int = 500) -> ControlSignals:
        """Signals since the last call. Raises `MirrorError` when the cluster is unavailable."""
        return self._read(self._tail.poll(timeout_ms))

    def read_to_end(self) -> ControlSignals:
        """Signals up to the end at the time this reader was created. Raises `MirrorError`."""
        return self._read(self._tail.read_to_end())

    def _read(self, records: Iterable[tuple[int, bytes | None, bytes | None]]) -> ControlSignals:
        commands: list[Command] = []
        assignments: list[AssignmentDocument] = []
        progress: list[SlotProgress] = []
        planned: list[Planned] = []
        drivers: list[DriverReport] = []
        requests: list[TopicRequest] = []
        standbys: dict[bytes | None, Standby | None] = {}
        deals: list[DealRecord] = []
        releases: list[Release] = []
        skipped = 0
        for partition, key, value in records:
            if partition == PROGRESS_PARTITION:
                report = decode_progress(key, value)
                driver = decode_driver_report(key, value) if report is None else None
                word = decode_planned(key, value) if report is None and driver is None else None
                if report is not None:
                    progress.append(self._reports.join(report))
                elif (piece := decode_piece(key, value)) is not None:
                    self._reports.add(piece)
                elif driver is not None:
                    drivers.append(driver)
                elif word is not None:
                    planned.append(word)
                elif (request := decode_request(key, value)) is not None:
                    requests.append(request)
                elif (release := decode_release(key, value, self._signer)) is not None:
                    releases.append(release)
                else:
                    standbys[key] = standby = decode_standby(key, value)
                    known = standby is not None or is_event_key(key)
                    skipped += value is not None and not known
                continue
            match = ASSIGNMENT_KEY.fullmatch(text(key))
            if match is not None:
                collector = self._collectors.setdefault(match[1], AssignmentCollector(match[1]))
                document = collector.feed(key, value)
                if document is not None:
                    assignments.append(document)
                continue
            deal_flow = flow_of(key)
            if deal_flow:
                deal = decode_deal(deal_flow, key, value)
                if deal is not None:
                    deals.append(deal)
                skipped += deal is None and value is not None
                continue
            command = decode_command(key, value)
            if command is not None:
                commands.append(command)
            known = command is not None or value is None
            known = known or is_limits_key(key) or is_routed_key(key) or is_epoch_key(key)
            skipped += not known and decode_claim(key, value) is None
        return ControlSignals(
            tuple(commands),
            tuple(assignments),
            tuple(progress),
            tuple(drivers),
            skipped,
            tuple(planned),
            tuple(one for one in standbys.values() if one is not None),
            tuple(requests),
            tuple(deals),
            tuple(releases),
        )

    def close(self) -> None:
        """Close the connection."""
        self._tail.close()


class ControlTopicWriter:
    """Writes commands, assignments and reports to one control topic. Thread-safe, as `Cluster` is.

    ``signer`` signs assignments, deals and limits with the key of the run.
    """

    def __init__(self, cluster: Cluster, topic: str, signer: Signer | None = None) -> None:
        self._cluster = cluster
        self._signer = signer
        self._topic = topic

    def command(self, *commands: Command) -> None:
        """Write ``commands``; they are acknowledged on return. Raises `MirrorError`."""
        records = [(COMMAND_PARTITION, *encode_command(command)) for command in commands]
        self._cluster.produce_many(self._topic, records)

    def forget(self, flow: str, reports: Iterable[SlotProgress]) -> None:
        """Delete all signals of ``flow``, a `channel` that no run will use again.

        ``reports``: those of its slots. Raises `MirrorError`.
        """
        slots = sorted({name for report in reports for name in record_names(report)})
        names = (f"{flow}/{name}" for name in ("planner", "driver", *slots))
        commands = (flow, f"{flow}/assignment", f"{flow}/pause", f"{flow}/limits", deal_key(flow))
        keys = [*commands, *names]
        self._cluster.produce_many(
            self._topic,
            [
                (
                    PROGRESS_PARTITION if index >= len(commands) else COMMAND_PARTITION,
                    key.encode(),
                    None,
                )
                for index, key in enumerate(keys)
            ],
        )

    def deal(self, record: DealRecord) -> None:
        """Write a deal for the planner. Raises `MirrorError`."""
        self._cluster.produce_many(
            self._topic, [(COMMAND_PARTITION, *encode_deal(record, self._signer))]
        )

    def limit(self, limits: Limits) -> None:
        """Write the limits of the slots. Raises `MirrorError`."""
        record = encode_limits(limits, self._signer)
        self._cluster.produce_many(self._topic, [(COMMAND_PARTITION, *record)])

    def answer(self, routed: RoutedTopics) -> None:
        """Write which topics were created for routed records. Raises `MirrorError`."""
        record = encode_routed(routed, self._signer)
        self._cluster.produce_many(self._topic, [(COMMAND_PARTITION, *record)])

    def report(self, report: DriverReport) -> None:
        """Write the driver's report. Raises `MirrorError`."""
        key, value = encode_driver_report(report)
        self._cluster.produce_many(self._topic, [(PROGRESS_PARTITION, key, value)])

    def assign(self, document: AssignmentDocument, command: Command) -> None:
        """Write ``document``, then ``command``: a reader of the command has the assignment.

        Raises `MirrorError`.
        """
        pieces = encode_assignment(document, signer=self._signer)
        records = [(COMMAND_PARTITION, *piece) for piece in pieces]
        records.append((COMMAND_PARTITION, *encode_command(command)))
        self._cluster.produce_many(self._topic, records)
