"""Exactly-once, and one mirror per flow."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["EXACTLY_ONCE"]

_CONTEST = "tests/unit/control/coordination/test_contest.py"
_EXACT = "tests/unit/data/write/test_exactly_once.py"
_HANGING = "tests/unit/data/coordination/test_hanging_transactions.py"
_OWNERSHIP = "tests/unit/control/coordination/test_ownership.py"
_REHEARSAL = "tests/unit/data/test_spark_source.py"
_CONTROL_LOOP = "tests/unit/control/test_loop.py"
_PLAIN = "tests/unit/data/write/test_slot_sink.py"
_PRODUCE = "tests/unit/wire/produce/test_producer.py"
_TAKEOVER = "tests/unit/data/coordination/test_fencing.py"
_TRANSACTIONS = (
    "tests/property/test_transaction_properties.py::test_each_transaction_ends_once_as_a_whole"
)

EXACTLY_ONCE: tuple[Mutant, ...] = (
    Mutant(
        "the position one transaction late",
        "## Exactly-once",
        "data/write/transaction_positions.py",
        "            position = lane.queue[-1].next_offset if lane.queue else lane.position\n",
        "            position = lane.position\n",
        (f"{_EXACT}::test_everything_is_one_transaction",),
    ),
    Mutant(
        "a coordinator that has moved is no reason to look again",
        "Leaders, the transaction's and the group's coordinator",
        "wire/cluster/error_codes.py",
        '            "NOT_COORDINATOR",\n',
        "",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "a transaction that the coordinator has aborted is written on",
        "The coordinator may abort a transaction for its age",
        "wire/produce/backlog.py",
        "        if self._transactions is not None and (forgotten or code in FENCED):\n",
        "        if self._transactions is not None and code == 45 and forgotten:\n",
        (f"{_PRODUCE}::test_a_transaction_that_the_target_has_ended_is_not_written_on",),
    ),
    Mutant(
        "gap records and letters written outside of the transaction",
        "Gap records and letters count with the records around them",
        "data/write/sink_task.py",
        "producer = self.reporter if tp.topic == self._control.topic else self.producer",
        "producer = self.reporter",
        (f"{_EXACT}::test_records_are_left_out_without_an_abort",),
    ),
    Mutant(
        "offset syncs written outside of the transaction",
        "Offset syncs on the target count with their records",
        "data/write/exactly_once.py",
        'self._syncs_at_target = flow.offset_syncs.location == "target"',
        'self._syncs_at_target = flow.offset_syncs.location == "nowhere"',
        (f"{_EXACT}::test_offset_syncs_are_in_the_transaction",),
    ),
    Mutant(
        "offset syncs that are refused take the records with them",
        "Offset syncs on the target count with their records",
        "data/write/exactly_once.py",
        "        self._syncs_inside = False\n        self._replay([])\n",
        "        self._replay([])\n",
        (f"{_EXACT}::test_offset_syncs_that_are_refused_hold_no_record_up",),
    ),
    Mutant(
        "a transaction grows without end",
        "A transaction ends by its size, too",
        "data/write/exactly_once.py",
        "                if self._kept_bytes and self._kept_bytes + part.size > self._size.bytes:",
        "                if False:",
        (f"{_EXACT}::test_a_transaction_ends_by_size",),
    ),
    Mutant(
        "a transaction is as large as the setting allows on a slow way, too",
        "On a slow way to the target transactions are small enough",
        "data/write/transaction_size.py",
        "            self.bytes = self._allowed(min(affordable, 2 * self.bytes))",
        "            self.bytes = self._allowed(2 * self.bytes)",
        (f"{_EXACT}::test_a_target_that_gets_slower_is_followed_and_one_that_recovers_too",),
    ),
    Mutant(
        "after a transaction that took too long the next one is as large",
        "On a slow way to the target transactions are small enough",
        "data/write/transaction_size.py",
        "self._allowed(_FIRST_TRANSACTION_BYTES >> min(failed, 32))",
        "self._allowed(_FIRST_TRANSACTION_BYTES)",
        (f"{_EXACT}::test_after_a_transaction_that_took_too_long_the_next_one_is_smaller",),
    ),
    Mutant(
        "nothing looks for a missing marker between two transactions of one row",
        "What is open of a decided transaction",
        "data/write/exactly_once.py",
        "                    self.prepare([part])  # a marker may be missing by now\n",
        "",
        (
            "tests/property/test_missing_markers_properties.py::test_each_record_counts_once_and_in_order",
        ),
    ),
    Mutant(
        "read_uncommitted is no contradiction",
        "What contradicts it is refused at the start",
        "config/mm2/exactly_once.py",
        'if isolation is not None and isolation.value.strip().lower() == "read_uncommitted":',
        'if isolation is not None and isolation.value == "":',
        (
            "tests/unit/config/mm2/test_exactly_once.py::test_what_contradicts_it_is_refused_by_name",
        ),
    ),
    Mutant(
        "a coordinator that is away ends the transaction",
        "A broker of the target may die",
        "wire/produce/transactions.py",
        "            except (ConnectionLost, ClusterError) as error:\n",
        "            except ClusterError as error:\n",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "an answer that got lost is taken for a good one",
        "Connections may break at any time",
        "wire/produce/transactions.py",
        '                code, name, failure = 15, "CONNECTION_LOST", str(error)\n',
        "                return\n",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "an abort commits",
        "A writer may die before, in and after the end of a transaction",
        "wire/produce/transactions.py",
        "            committed=committed,\n",
        "            committed=True,\n",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "batches carry the epoch of an earlier writer",
        "What an old writer still sends is refused",
        "wire/produce/partition_queue.py",
        "            producer_epoch=epoch,\n",
        "            producer_epoch=0,\n",
        (f"{_EXACT}::test_what_is_written_anew_counts_its_gaps_once",),
    ),
    Mutant(
        "another run's claim is not heeded",
        "Another run takes over",
        "data/coordination/fencing.py",
        "    if claim is not None and claim.run_id != run_id:\n",
        "    if claim is not None and not claim.run_id:\n",
        (
            "tests/unit/internal_topics/test_flow_claims.py::test_only_another_run_takes_a_flow_over",
        ),
    ),
    Mutant(
        "a new owner counts as silent since before its claim",
        "One process mirrors a flow",
        "control/coordination/contest.py",
        "                    self._reported_s[claim.run_id] = now_s\n",
        "",
        (f"{_CONTEST}::test_a_new_owner_has_a_session_for_its_first_report",),
    ),
    Mutant(
        "clocks of two machines are compared",
        "One process mirrors a flow",
        "control/coordination/contest.py",
        "            self._reported_s[report.run_id] = now_s\n",
        "            self._reported_s[report.run_id] = report.time_ms / 1000\n",
        (f"{_CONTEST}::test_silence_counts_from_what_arrives_whatever_clocks_say",),
    ),
    Mutant(
        "time in which the target did not answer counts as silence",
        "One process mirrors a flow",
        "control/coordination/contest.py",
        "        self._since_s = self._read_s = None\n",
        "        self._read_s = None\n",
        (f"{_CONTEST}::test_a_target_that_does_not_answer_takes_nothing_from_the_owner",),
    ),
    Mutant(
        "no look after a claim of one's own",
        "One process mirrors a flow",
        "control/coordination/ownership.py",
        "        if self.check() is not ClaimState.OURS:\n",
        "        if self.check() is not self.check():\n",
        (f"{_OWNERSHIP}::test_of_two_that_claim_at_once_one_begins",),
    ),
    Mutant(
        "a second process begins beside the first",
        "One process mirrors a flow",
        "control/coordination/ownership.py",
        "            if (take_over or claim_state is not ClaimState.HELD) and self._claim(",
        "            if self._claim(",
        (f"{_OWNERSHIP}::test_the_second_process_stands_by_until_the_first_is_silent",),
    ),
    Mutant(
        "a standby's first epoch is one as any other",
        "One process mirrors a flow",
        "data/spark_source.py",
        "        if partition.value.rehearsal:\n",
        "        if not partition.value:\n",
        (f"{_REHEARSAL}::test_a_rehearsal_runs_through_both_ends_and_touches_nothing",),
    ),
    Mutant(
        "a standby writes the heartbeats of the way back",
        "One process mirrors a flow",
        "control/loop.py",
        "self._flows.get(pair.name) or self._flows.get(back)\n",
        "self._flows.get(pair.name)\n",
        (f"{_CONTROL_LOOP}::test_who_stands_by_writes_no_heartbeats",),
    ),
    Mutant(
        "a driver that was frozen goes on with its work",
        "One process mirrors a flow",
        "control/coordination/ownership.py",
        "        return self.contest.fresh(now_s) and self",
        "        return self",
        (f"{_OWNERSHIP}::test_who_was_frozen_does_nothing_before_it_has_looked",),
    ),
    Mutant(
        "a late commit of a former owner outlives the epoch",
        "One process mirrors a flow",
        "data/write/at_least_once.py",
        "        self._commit_all_again()\n",
        "",
        (f"{_PLAIN}::test_the_end_of_an_epoch_commits_all_positions_again",),
    ),
    Mutant(
        "a sink that was frozen sends what it has",
        "One process mirrors a flow",
        "wire/produce/producer.py",
        "            self.before_send()\n",
        "            pass\n",
        (f"{_PLAIN}::test_a_sink_that_was_frozen_writes_nothing_once_another_run_has_the_flow",),
    ),
    Mutant(
        "a sink that was frozen commits positions",
        "One process mirrors a flow",
        "data/write/at_least_once.py",
        "        if self._pause is not None:\n            self._pause.before_write()\n",
        "",
        (f"{_PLAIN}::test_a_sink_that_was_frozen_writes_nothing_once_another_run_has_the_flow",),
    ),
    Mutant(
        "the planner does not heed claims",
        "One process mirrors a flow",
        "data/spark_source.py",
        "        if flow.mode is MirrorMode.MM2:\n            check_claim(",
        "        if flow.exactly_once:\n            check_claim(",
        (
            "tests/unit/data/coordination/test_pause.py::test_no_epoch_is_planned_of_a_flow_that_another_run_has",
        ),
    ),
    Mutant(
        "no second look after the fence",
        "Processes may be killed at random",
        "data/coordination/fencing.py",
        "    check_owner(flow, run_id, watch)\n    return None if _outdated(",
        "    return None if _outdated(",
        (f"{_TAKEOVER}::test_a_claim_that_came_before_the_fence_wins",),
    ),
    Mutant(
        "what was committed without a marker is aborted",
        "What is open of a decided transaction",
        "data/coordination/hanging_transactions.py",
        "if end.counts(written[tp]) == counts}",
        "if end.counts(written[tp]) != counts}",
        (
            f"{_HANGING}::test_each_is_closed_the_way_its_transaction_ended",
            "tests/property/test_missing_markers_properties.py"
            "::test_each_record_counts_once_and_in_order",
        ),
    ),
    Mutant(
        "the records of a position counted one too many",
        "What is open of a decided transaction",
        "wire/produce/hanging_transactions.py",
        "        return self.last_sequence == (written.records - 1) % SEQUENCE_MODULO\n",
        "        return self.last_sequence <= written.records % SEQUENCE_MODULO\n",
        (f"{_HANGING}::test_only_the_very_records_of_the_position_count",),
    ),
    Mutant(
        "a slot of an older deal writes on",
        "A new deal fences the slots of the old one",
        "internal_topics/epochs/shares.py",
        "        return not 0 < command.version <= version\n",
        "        return False\n",
        (f"{_TAKEOVER}::test_a_slot_of_an_older_deal_writes_nothing",),
    ),
    Mutant(
        "a slot of an earlier epoch that begins late writes",
        "A new deal fences the slots of the old one",
        "data/coordination/fencing.py",
        "    return newest != record\n",
        "    return False\n",
        (
            f"{_TAKEOVER}::test_a_slot_of_an_earlier_epoch_writes_nothing",
            f"{_TAKEOVER}::test_whenever_slots_begin_a_partition_has_one_writer",
        ),
    ),
    Mutant(
        "a slot whose epoch has no record any more ends, and nobody has its partitions",
        "A new deal fences the slots of the old one",
        "data/coordination/fencing.py",
        "    if newest is None or newest.number < record.number:\n",
        "    if False:\n",
        (f"{_TAKEOVER}::test_without_the_record_of_its_epoch_a_slot_fails",),
    ),
    Mutant(
        "a partition that is added is written while another slot's transaction is open there",
        "A topic that is new, grows or is gone",
        "data/coordination/hanging_transactions.py",
        "                elif tp in added or (",
        "                elif (",
        (f"{_HANGING}::test_a_partition_that_is_added_may_have_records_of_any_slot",),
    ),
    Mutant(
        "slots that only an earlier run had are not fenced",
        "A new deal fences the slots of the old one",
        "data/coordination/fencing.py",
        "    slots = max(flow.tasks_max, claim.slots if claim is not None else 0)\n",
        "    slots = flow.tasks_max\n",
        (f"{_TAKEOVER}::test_a_new_deal_fences_every_slot_that_any_run_had",),
    ),
    Mutant(
        "a task that Spark has given up commits",
        "Nothing is committed for an attempt that Spark has given up",
        "data/write/sink_task.py",
        "        if worker_pipes.abandoned():\n",
        "        if worker_pipes.abandoned() and not self.lanes:\n",
        (f"{_EXACT}::test_nothing_is_committed_for_a_spark_that_has_hung_up",),
    ),
    Mutant(
        "what a partition had taken goes with the refused batch",
        "A refused record takes nothing else with it",
        "data/write/exactly_once.py",
        "                lane.queue = before_refusal(lane.queue)\n",
        "                lane.queue.clear()\n",
        (f"{_EXACT}::test_what_is_written_anew_counts_its_gaps_once",),
    ),
)
