"""What the target loses or refuses, and what the source loses."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["LOSSES"]

_FETCH = "tests/unit/wire/fetch/test_fetcher.py"
_JUDGEMENT = "tests/unit/data/coordination/test_target_judgement.py"
_LOSSES = "tests/unit/data/read/test_loss_detection.py"
_PLAIN = "tests/unit/data/write/test_slot_sink.py"
_SLOT = "tests/unit/data/read/test_slot_selection.py"
_START = "tests/unit/data/read/test_slot_start.py"
_TARGET = "tests/unit/data/read/test_target_loss.py"

LOSSES: tuple[Mutant, ...] = (
    # -- what the target loses ---------------------------------------------------------------------
    Mutant(
        "a shortened target taken for a whole one",
        "Lost target data",
        "data/coordination/target_judgement.py",
        "    return None if cut >= end else truncated(tp, cut, end)\n",
        "    return None\n",
        (f"{_JUDGEMENT}::test_losses",),
    ),
    Mutant(
        "a remote topic made anew taken for the old one",
        "Lost target data",
        "data/coordination/target_judgement.py",
        "    if mark.topic_id and now.topic_id and mark.topic_id != now.topic_id:\n",
        "    if mark.topic_id and not now.topic_id:\n",
        (f"{_JUDGEMENT}::test_losses",),
    ),
    Mutant(
        "a lagging high watermark taken for a loss",
        "Lost target data",
        "wire/cluster/log_view.py",
        "        return max(self.end, self.high_watermark)\n",
        "        return self.high_watermark\n",
        (f"{_JUDGEMENT}::test_nothing_is_lost",),
    ),
    Mutant(
        "a repair that leaves the last lost record out",
        "Lost target data",
        "data/read/resume_point.py",
        "    return run, min(run.length, cut - run.target)\n",
        "    return run, min(run.length, cut - run.target + 1)\n",
        (f"{_TARGET}::test_exact_runs_name_the_record_behind_the_last_one_that_is_left",),
    ),
    Mutant(
        "an acknowledgement that goes back moves the position",
        "Lost target data",
        "data/write/partition_state.py",
        "            if self.watched and self.queue[0].goes_back(self.reached) >= 0:\n",
        "            if self.watched and self.queue[0].goes_back(self.reached) > 1000:\n",
        (f"{_TARGET}::test_an_acknowledgement_that_goes_back_moves_no_position",),
    ),
    Mutant(
        "sent to a log that nobody looked at",
        "Lost target data",
        "data/write/target_ends.py",
        "        self._held.add(tp)\n        return False\n",
        "        self._held.add(tp)\n        return True\n",
        (
            f"{_TARGET}::test_nothing_is_sent_to_a_log_that_may_be_another_one_before_it_was_looked_at",
        ),
    ),
    Mutant(
        "a partition that its loss has stopped ends its slot's tasks",
        "One bad partition does not stop the rest",
        "data/write/target_ends.py",
        "(due and not _halted(lane))",
        "due",
        (f"{_TARGET}::test_a_partition_that_is_halted_ends_no_task_for_its_loss",),
    ),
    Mutant(
        "sent to a new log before its gap record is acknowledged",
        "Lost target data",
        "data/write/target_ends.py",
        "        if unsure and not self.flow.exactly_once:\n",
        "        if False:\n",
        (f"{_TARGET}::test_nothing_is_sent_to_a_new_log_before_its_gap_record_is_acknowledged",),
    ),
    Mutant(
        "a repair that is not written down is tried again at once",
        "One bad partition does not stop the rest",
        "data/write/sink_task.py",
        "self.flow.mode is MirrorMode.MM2 and not lane.unrepaired",
        "self.flow.mode is MirrorMode.MM2",
        (
            f"{_PLAIN}::test_a_repair_whose_gap_record_is_refused_for_good_is_left_to_the_next_epoch",
        ),
    ),
    Mutant(
        "what waits is sent although a gap has stopped its partition",
        "One bad partition does not stop the rest",
        "data/write/at_least_once.py",
        "if blocked and alone and self._backlog.waiting(lane.target):",
        "if False:",
        (f"{_PLAIN}::test_what_waits_for_a_partition_that_its_gap_has_stopped_is_not_sent",),
    ),
    Mutant(
        "others' records in the place of lost ones taken for the mirror's",
        "Lost target data",
        "data/read/resume_point.py",
        "left[-1][1] not in {content for _, content in wanted}",
        "left[-1][1] in ()",
        (f"{_TARGET}::test_what_others_wrote_in_the_place_of_ours_is_told",),
    ),
    Mutant(
        "a marker in the place of a lost record is overlooked",
        "Lost target data",
        "data/read/resume_point.py",
        "    if end - 1 in markers:\n        return True\n",
        "",
        (f"{_TARGET}::test_a_marker_in_the_place_of_our_last_record_is_told",),
    ),
    Mutant(
        "our records after those of others hide what is lost",
        "Lost target data",
        "data/read/resume_point.py",
        "            if _first_unsure_is_there(sides, records):\n",
        "            if runs:\n",
        (f"{_TARGET}::test_our_records_after_those_of_others_do_not_hide_what_is_lost",),
    ),
    Mutant(
        "the rest of a transaction that was cut counts as mirrored",
        "Lost target data",
        "data/read/target_loss.py",
        "        return min([cut, *rest])\n",
        "        return cut\n",
        (f"{_TARGET}::test_the_rest_of_a_transaction_that_was_cut_is_lost_as_well",),
    ),
    Mutant(
        "a new leader's log is not compared while the mirror runs",
        "Lost target data",
        "data/write/target_ends.py",
        "        return whole and may_be_others(one.end, one.mark, view)\n",
        "        return False\n",
        (f"{_TARGET}::test_a_new_leader_whose_log_others_have_filled",),
    ),
    Mutant(
        "at a start, a later epoch's records are taken for the mirror's",
        "Lost target data",
        "data/coordination/target_judgement.py",
        "    return 0 <= view.epoch_end < end and mark.leader_epoch >= 0\n",
        "    return view.epoch_end == end and mark.leader_epoch >= 0\n",
        (f"{_TARGET}::test_a_log_that_others_filled_after_the_last_look",),
    ),
    Mutant(
        "positions that went with their topic are forgotten",
        "Lost target data",
        "data/read/target_loss.py",
        "one.target_id != now:\n",
        "one.target_id == now:\n",
        (f"{_TARGET}::test_positions_that_went_with_their_topic",),
    ),
    Mutant(
        "the loss is forgotten before it is written down",
        "Lost target data",
        "data/read/target_loss.py",
        "        return Verdict(resumed, mark, end, lost=True)\n",
        "        return Verdict(resumed, now, end, lost=True)\n",
        (f"{_TARGET}::test_a_repair_goes_back_and_the_sink_learns_it_with_the_gap",),
    ),
    # -- what the source loses, what the target refuses --------------------------------------------
    Mutant(
        "deleted offsets jumped over",
        "Lost source data is reported",
        "data/read/loss_detection.py",
        "    if position < view.start:\n",
        "    if position < view.start - 1:\n",
        (f"{_LOSSES}::test_no_offset_is_jumped_over_in_silence",),
    ),
    Mutant(
        "a truncated log taken for a whole one",
        "Lost source data is reported",
        "data/read/loss_detection.py",
        "    return end if end < position else None\n",
        "    return None\n",
        (f"{_LOSSES}::test_losses",),
    ),
    Mutant(
        "a topic made anew taken for the old one",
        "Lost source data is reported",
        "data/read/loss_detection.py",
        "    if mark.topic_id and now.topic_id and mark.topic_id != now.topic_id:\n",
        "    if mark.topic_id and not now.topic_id:\n",
        (f"{_LOSSES}::test_losses",),
    ),
    Mutant(
        "another cluster taken for the old one",
        "Lost source data is reported",
        "data/read/loss_detection.py",
        "    if mark.cluster_id and now.cluster_id and mark.cluster_id != now.cluster_id:\n",
        "    if mark.cluster_id and not now.cluster_id:\n",
        (f"{_LOSSES}::test_losses",),
    ),
    Mutant(
        "a log that has changed while its partition began is fetched on",
        "Lost source data is reported",
        "wire/fetch/assigned_partitions.py",
        "            self.connections.forget_leaders(outdated)\n",
        "            pass\n",
        (f"{_FETCH}::test_what_another_fetcher_has_begun_is_held_if_its_log_has_changed_since",),
    ),
    Mutant(
        "behind a compaction hole the leader epoch before it counts",
        "Lost source data is reported",
        "data/read/slot_reader.py",
        "            if chosen.epoch_behind not in (None, known):\n",
        "            if False:\n",
        (f"{_SLOT}::test_a_bounded_run_that_ends_in_a_compaction_hole_has_lost_nothing",),
    ),
    Mutant(
        "positions are judged by what the source was before the target was away",
        "Lost source data is reported",
        "data/read/slot_reader.py",
        "                    if waited or ticks_s",
        "                    if ticks_s",
        (
            f"{_START}::test_after_a_wait_for_the_target_positions_are_judged_by_new_metadata_of_the_source",
        ),
    ),
    Mutant(
        "a log from a backup taken for the one that was mirrored",
        "Lost source data is reported",
        "data/read/loss_detection.py",
        "    if view.latest >= 0:\n",
        "    if view.latest > mark.leader_epoch:\n",
        (f"{_LOSSES}::test_losses",),
    ),
    Mutant(
        "after a pause it is fetched on by what was known before",
        "Lost source data is reported",
        "data/read/slot_reader.py",
        "        if now_s - self._fetched_s >= _LONG_S:\n",
        "        if False:\n",
        (
            "tests/unit/data/coordination/test_pause.py"
            "::test_after_a_long_pause_a_slot_waits_for_new_metadata_of_its_source",
        ),
    ),
    Mutant(
        "an offset out of range is no reason to stop",
        "Lost source data is reported",
        "wire/fetch/partition_state.py",
        "            self.halt = Halt(name, self._out_of_range(",
        "            self.offset = part.log_start_offset\n"
        "            _ = Halt(name, self._out_of_range(",
        (f"{_FETCH}::test_what_is_out_of_range_twice_is_looked_at_and_never_jumped_over",),
    ),
    Mutant(
        "a refused partition stops all others",
        "One bad partition does not stop the rest",
        "data/write/at_least_once.py",
        "        return [tp for tp in lane.waits_for() if tp in halts]\n",
        "        return list(halts)\n",
        (f"{_PLAIN}::test_a_partition_that_is_refused_stops_alone_and_may_be_tried_again",),
    ),
    Mutant(
        "a paused partition is tried again far too late",
        "One bad partition does not stop the rest",
        "data/read/retry_schedule.py",
        "        state.due = now + state.pause_s if halt.retriable else math.inf\n",
        "        state.due = now + 10 * state.pause_s if halt.retriable else math.inf\n",
        (
            "tests/unit/data/write/test_bad_records.py::test_pauses_grow_and_old_reports_end_no_attempt",
        ),
    ),
    Mutant(
        "the position passes a record that is not written down yet",
        "## When the target refuses records",
        "data/write/bad_records.py",
        "        carrier.wait_for(tp)\n",
        "",
        (
            "tests/unit/data/write/test_bad_records.py::test_the_position_waits_for_what_is_written_down",
        ),
    ),
    Mutant(
        "a letter without the record's headers",
        "## When the target refuses records",
        "data/write/bad_records.py",
        "record.key, record.value, (*record.headers, *added))",
        "record.key, record.value, added)",
        (
            "tests/unit/data/write/test_bad_records.py::test_a_letter_keeps_the_record_and_says_where_it_is_from",
        ),
    ),
    Mutant(
        "good records of a refused batch left out, too",
        "## When the target refuses records",
        "records/split.py",
        "    kept = [encode_batch(run, codec=codec(batch)) for run in runs if run]\n",
        "    kept = [encode_batch(run, codec=codec(batch)) for run in runs[:1] if run]\n",
        ("tests/unit/data/write/test_bad_records.py::test_bad_records_are_taken_out",),
    ),
)
