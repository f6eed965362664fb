"""The flow as a PySpark data source: planner, reader and writer under the format ``sparkmirror``.

Spark's offset is only the number of the epoch; positions are in Kafka. Each class here implements
what Spark's Python Data Source API requires, and calls `data.read.slot_reader` and
`data.write.slot_sink`. Those are imported where they are used: Spark starts five short-lived
processes per query that load this module only to pickle it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sparkmirror.data.rows.schema import SCHEMA

if TYPE_CHECKING:
    from sparkmirror.data.coordination.control_reader import ControlWatch
    from sparkmirror.data.coordination.planner_report import PlannerReporter
    from sparkmirror.data.coordination.slot_plan import SlotPlan
    from sparkmirror.data.read.slot_reader import SlotReader
    from sparkmirror.data.write.slot_sink import SlotSummary
    from sparkmirror.internal_topics.commands import AssignmentDocument, SourcePartition
    from sparkmirror.internal_topics.deals.record import DealRecord
    from sparkmirror.settings import FlowSettings

__all__ = ["FORMAT", "MirrorDataSource"]

log = logging.getLogger(__name__)

FORMAT = "sparkmirror"
_SHARE_POLL_S = 0.1


class MirrorDataSource(DataSource):
    """Both ends of one flow.

    Options: ``flow`` (see `data.coordination.slot_plan.encode_flow`), ``run_id``, ``once``
    (true/false), and with transforms ``columns`` (see `data.transform.columns`) and ``reasons``,
    the path of a socket (see `data.transform.reasons`).
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The rows of `data.rows.rows`; with transforms, also records."""
        if "columns" not in self.options:
            return SCHEMA
        from sparkmirror.data.transform.columns import decode_columns, spark_schema  # noqa: PLC0415

        return spark_schema(decode_columns(self.options["columns"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The planner (driver side) and the slots' reader (executors)."""
        return _Planner(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> _Writer:  # noqa: N802
        """The slots' writer."""
        return _Writer(self.options["flow"], self.options.get("reasons", ""))


class _Slot(InputPartition):
    def __init__(self, plan: SlotPlan) -> None:
        super().__init__(plan)


class _Planner(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs. One long-lived object per query, in a worker of its own on the driver."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._flow_text = options["flow"]
        self._once = options.get("once") == "true"
        self._watch: ControlWatch | None = None
        self._planned: PlannerReporter | None = None
        self._fenced: tuple[int, tuple[tuple[SourcePartition, ...], ...]] | None = None
        self._deal: DealRecord | None = None
        self._once_epoch: int | None = None
        self._bounded = (0, 0)  # epoch planned last, version of the assignment that it carries
        self._warm = False
        self._idle = False  # the last look found nothing to plan

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"epoch": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing to do: the ends of a bounded run are already frozen in its assignment."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The next epoch, or ``start`` again if there is nothing (more) to mirror."""
        offset = self._next_epoch(start)
        self._idle = offset == start
        return offset

    def _next_epoch(self, start: dict[str, int]) -> dict[str, int]:
        watch = self._control()
        run_id = self._options["run_id"]
        if self._once:
            watch.catch_up()
        elif not self._read_control_topic(watch):
            return start
        if self._once and self._planned is not None:
            return self._bounded_share(start, watch, self._planned)
        assignment = watch.assignment
        if self._planned is not None and assignment is not None and assignment.run_id == run_id:
            if not self._warm and not assignment.partitions:
                # An epoch without partitions starts our workers, which load their modules. The
                # other members of the group mirror everything meanwhile.
                return {"epoch": int(start["epoch"]) + 1}
            # Spark asks for an offset only when no epoch runs.
            self._planned.report(assignment.version)
        if self._once:
            if self._once_epoch is None:
                self._once_epoch = int(start["epoch"]) + 1
            return {"epoch": self._once_epoch}
        if assignment is None or assignment.run_id != run_id:
            # Another process owns the flow. To be fast when it is our turn, Spark runs one empty
            # epoch, which loads everything that it needs.
            rehearsed = self._warm or self._planned is not None
            return start if rehearsed else {"epoch": int(start["epoch"]) + 1}
        if not assignment.partitions or _drained(watch, run_id):
            return start
        deal = watch.deal if self._deal is None else None
        if deal is not None and deal.moved and deal.version > assignment.version:
            return start  # where the partitions were is unknown; its assignment follows at once
        return {"epoch": int(start["epoch"]) + 1}

    def _read_control_topic(self, watch: ControlWatch) -> bool:
        """Read the control topic to its end; who has nothing to plan waits there for a moment."""
        known = watch.assignment
        ours = known is not None and known.run_id == self._options["run_id"]
        idle = self._idle or (self._warm and not ours)
        watch.waits_for_more = self._planned is None and idle
        return _caught_up(watch)

    def _bounded_share(
        self, start: dict[str, int], watch: ControlWatch, planned: PlannerReporter
    ) -> dict[str, int]:
        """``--once`` as a member of a group: one epoch for each share that the group assigns.

        An assignment without a member was not made by the group: the mirror has not joined yet, or
        has given up everything to rejoin. The share that the slots have copied to its ends is the
        last one; then ``start`` ends the query.
        """
        epoch, version = self._bounded
        if int(start["epoch"]) < epoch:
            return {"epoch": epoch}  # planned, but not run yet
        run_id = self._options["run_id"]
        while True:
            assignment = watch.assignment
            if _drained(watch, run_id):
                return start
            if assignment is not None and assignment.run_id == run_id:
                planned.report(assignment.version)
                if assignment.member is not None:
                    if assignment.version == version or not assignment.partitions:
                        return start
                    self._bounded = (int(start["epoch"]) + 1, assignment.version)
                    return {"epoch": self._bounded[0]}
            time.sleep(_SHARE_POLL_S)
            watch.catch_up()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The slots of the epoch, from the newest assignment of this run."""
        if start == end:
            return []
        from sparkmirror.data.coordination.fencing import check_claim  # noqa: PLC0415
        from sparkmirror.data.coordination.slot_plan import SlotPlan, decode_flow, plan_slots  # noqa: PLC0415
        from sparkmirror.model import MirrorMode  # noqa: PLC0415

        watch = self._control()
        if self._once:
            watch.catch_up()
        else:
            # If this fails, what `latestOffset` has read is enough: the slots read what came after.
            watch.waits_for_more = False
            _caught_up(watch)
        flow, run_id = decode_flow(self._flow_text), self._options["run_id"]
        newest = watch.assignment
        assignment = newest if newest is not None and newest.run_id == run_id else None
        if assignment is not None and _drained(watch, run_id):
            return []
        # Once, before anything is mirrored: a standby rehearses, and a member of a group that has
        # no share yet starts its workers. Neither has partitions.
        cold = not self._warm and not self._once
        rehearsal = assignment is None and self._planned is None
        no_share = (
            assignment is not None and not assignment.partitions and self._planned is not None
        )
        if cold and (rehearsal or no_share):
            self._warm = True
            return [
                _Slot(
                    SlotPlan(
                        slot=slot,
                        epoch=int(end["epoch"]),
                        run_id=run_id,
                        partitions=(),
                        ends=(),
                        control_offset=0 if rehearsal else watch.offset,
                        rehearsal=rehearsal,
                    )
                )
                for slot in range(flow.tasks_max)
            ]
        if assignment is None:
            return []
        self._warm = True
        if flow.mode is MirrorMode.MM2:
            check_claim(flow, watch.claim, run_id)
        deal = watch.deal
        # One without moves says where the partitions are: a new planner finds them there.
        if deal is not None and (
            deal.version <= assignment.version or (self._deal is None and not deal.moved)
        ):
            self._deal = deal
        plans = plan_slots(
            assignment.partitions,
            slots_max=flow.tasks_max,
            epoch=int(end["epoch"]),
            run_id=run_id,
            ends=assignment.ends if self._once else None,
            control_offset=watch.offset,
            version=assignment.version,
            member=assignment.member,
            paused=watch.paused,
            planned_at_s=time.time(),
            claim_term=assignment.claim_term,
            limits=watch.limits,
            deal=self._deal,
        )
        if flow.exactly_once:
            plans = self._fence(flow, watch, assignment, plans)
        return list(map(_Slot, plans))

    def _fence(
        self,
        flow: FlowSettings,
        watch: ControlWatch,
        assignment: AssignmentDocument,
        plans: list[SlotPlan],
    ) -> list[SlotPlan]:
        """Make sure that nobody else writes the flow; returns ``plans`` with their epoch's record.

        If no partition has another slot than in the epoch before, its slots are fenced by the new
        ones, which have the same ids.
        """
        from sparkmirror.data.coordination.epoch_record import begin_epoch  # noqa: PLC0415
        from sparkmirror.data.coordination.fencing import fence_plan  # noqa: PLC0415

        run_id = self._options["run_id"]
        record = begin_epoch(flow, run_id, watch)
        shares = assignment.version, tuple(plan.partitions for plan in plans)
        complete = shares == self._fenced
        if not complete:
            complete = fence_plan(flow, run_id, watch.claim, assignment)
            # Partitions whose leaders did not respond are checked before the next epoch, which
            # begins soon.
            self._fenced = shares if complete else None
        return [replace(plan, brief=not complete, record=record) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Executor side: the rows of one slot."""
        from sparkmirror.data.coordination.slot_plan import decode_flow  # noqa: PLC0415
        from sparkmirror.data.read.slot_reader import SlotReader  # noqa: PLC0415
        from sparkmirror.data.rows.rows import rehearsal  # noqa: PLC0415

        if partition.value.rehearsal:
            return self._unpacked(rehearsal(), None)
        task = TaskContext.get()
        attempt = (0, 0) if task is None else (task.attemptNumber(), task.taskAttemptId())
        reader = SlotReader(decode_flow(self._flow_text), partition.value, *attempt)
        return self._unpacked(reader.rows(), reader)

    def _unpacked(self, rows: Iterator[Any], reader: SlotReader | None) -> Iterator[Any]:
        """``rows``; with transforms, followed by the records that these process."""
        if "columns" not in self._options:
            return rows
        from sparkmirror.data.coordination.slot_plan import decode_flow  # noqa: PLC0415
        from sparkmirror.data.transform.columns import decode_columns  # noqa: PLC0415
        from sparkmirror.data.transform.unpack import Unpacker  # noqa: PLC0415

        columns = decode_columns(self._options["columns"])
        frames = None if reader is None else reader.frames
        return Unpacker(decode_flow(self._flow_text), columns, frames).rows(rows)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._planned is not None:
            self._planned.close()

    def _control(self) -> ControlWatch:
        if self._watch is None:
            from sparkmirror.data.coordination.control_reader import ControlWatch  # noqa: PLC0415
            from sparkmirror.data.coordination.planner_report import PlannerReporter  # noqa: PLC0415
            from sparkmirror.data.coordination.slot_plan import decode_flow  # noqa: PLC0415
            from sparkmirror.model import MirrorMode  # noqa: PLC0415

            flow = decode_flow(self._flow_text)
            run_id = self._options["run_id"]
            self._watch = ControlWatch(flow, run_id)
            if flow.mode is MirrorMode.MM1:
                self._planned = PlannerReporter(flow, run_id)
        return self._watch


def _drained(watch: ControlWatch, run_id: str) -> bool:
    """Whether the run was told to end. The slots read only what comes after their plan."""
    from sparkmirror.internal_topics.commands import CommandKind  # noqa: PLC0415

    command = watch.command
    return command is not None and command.run_id == run_id and command.kind is CommandKind.DRAIN


def _caught_up(watch: ControlWatch) -> bool:
    """Whether the control topic was read to its end. If the target is unavailable, try later."""
    try:
        watch.catch_up()
    except TimeoutError as error:
        log.warning("no epoch can be planned now: %s", error)
        return False
    return True


@dataclass
class _Committed(WriterCommitMessage):
    summary: SlotSummary


class _Writer(DataSourceStreamArrowWriter):
    """Executor side of the sink. The slots commit positions, so `commit` has nothing to do."""

    def __init__(self, flow_text: str, reasons: str = "") -> None:
        self._flow_text = flow_text
        self._reasons = reasons

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from sparkmirror.data.coordination.slot_plan import decode_flow  # noqa: PLC0415
        from sparkmirror.data.rows.rows import is_rehearsal  # noqa: PLC0415
        from sparkmirror.data.write.slot_sink import SlotSink, SlotSummary  # noqa: PLC0415

        first = next(iterator, None)
        if first is not None and is_rehearsal(first):
            for _ in iterator:
                pass
            return _Committed(SlotSummary(-1, -1, 0, 0))
        iterator = chain(() if first is None else (first,), iterator)
        task = TaskContext.get()
        failed = 0 if task is None else task.attemptNumber()
        sink = SlotSink(decode_flow(self._flow_text), failed, self._reasons)
        return _Committed(sink.run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: every slot has committed what it wrote."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to undo: what was acknowledged is at the target, and positions say so."""
