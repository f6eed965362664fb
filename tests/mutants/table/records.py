"""Records: none is lost, none comes twice, all are equal."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["RECORDS"]

_BATCHES = "tests/property/test_batch_properties.py"
_JOINING = "tests/unit/wire/produce/test_joining.py"
_ROUTED = "tests/unit/data/write/test_routed_records.py"
_ROUTING = "tests/unit/data/transform/test_routing.py"
_PLAIN = "tests/unit/data/write/test_slot_sink.py"
_FIRST_POSITIONS = "tests/unit/control/positions/test_first_positions.py"
_PRODUCE = "tests/unit/wire/produce/test_producer.py"
_PRODUCER = "tests/property/test_producer_properties.py"
_SELECT = "tests/unit/records/test_selection.py"
_SLOT = "tests/unit/data/read/test_slot_selection.py"
_ZOMBIES = "tests/unit/control/coordination/test_zombies.py"
_ONCE_AND_IN_ORDER = f"{_PRODUCER}::test_every_batch_arrives_once_and_in_order"

RECORDS: tuple[Mutant, ...] = (
    # -- no record is lost, none comes twice, all are equal ----------------------------------------
    Mutant(
        "position committed before the acknowledgement",
        "No acknowledged record is lost",
        "data/write/partition_state.py",
        "while self.queue and not self.queue[0].batches_left:",
        "while self.queue:",
        (f"{_PLAIN}::test_a_position_waits_for_the_acknowledgement_of_all_before_it",),
    ),
    Mutant(
        "routed records committed when the first partition has them",
        "No acknowledged record is lost",
        "data/write/sink_task.py",
        "        pending.batches_left = len(cuts)\n",
        "        pending.batches_left = 1 if pending.lane.routed and cuts else len(cuts)\n",
        (f"{_ROUTED}::test_a_position_waits_for_every_target_partition",),
    ),
    Mutant(
        "a refusal stops no lane that routes there",
        "No acknowledged record is lost",
        "data/write/sink_task.py",
        "        pending.beside = {*(pending.beside or ()), *places}\n",
        "        pending.beside = None\n",
        (
            f"{_ROUTED}::test_a_topic_that_refuses_stops_only_those_that_go_there",
            f"{_ROUTED}::test_a_refusal_stops_the_partitions_that_go_there",
        ),
    ),
    Mutant(
        "a chunk of routed records ends one record late",
        "No acknowledged record is lost",
        "data/transform/pack.py",
        "after = end if last == len(sizes) else int(new.columns.offset[last])",
        "after = end if last == len(sizes) else int(new.columns.offset[last]) + 1",
        (f"{_ROUTING}::test_records_go_where_a_model_says",),
    ),
    Mutant(
        "last batch of a chunk dropped",
        "No acknowledged record is lost",
        "data/write/sink_task.py",
        "        cuts = batches(part)\n",
        "        cuts = batches(part)\n        cuts = cuts[:-1] if len(cuts) > 1 else cuts\n",
        (f"{_PLAIN}::test_a_partition_that_is_refused_stops_alone_and_may_be_tried_again",),
    ),
    Mutant(
        "last batch of an answer dropped",
        "No acknowledged record is lost",
        "records/batch_decisions.py",
        "self._carry_raw(Raw(starts[first], starts[frame], frame - first,",
        "self._carry_raw(Raw(starts[first], starts[max(first + 1, frame - 1)], frame - first,",
        (f"{_SELECT}::test_filled_batches_are_one_view_of_the_buffer",),
    ),
    Mutant(
        "any attempt's halts are heard",
        "Nothing is written again below a position",
        "internal_topics/reports.py",
        "if data is None or not data.startswith(_teller(*attempt)):",
        "if data is None:",
        (
            f"{_ZOMBIES}::test_a_slot_goes_back_for_no_other_attempts_report",
            f"{_ZOMBIES}::test_another_attempts_report_hides_no_halt",
        ),
    ),
    Mutant(
        "records below the position are written",
        "Nothing is written again below a position",
        "data/write/partition_state.py",
        "if offset < behind:",
        "if False:",
        (
            f"{_ZOMBIES}::test_what_lies_below_the_position_is_not_written",
            f"{_ZOMBIES}::test_what_lies_below_what_is_on_its_way_is_not_written",
            f"{_ZOMBIES}::test_in_a_transaction_nothing_below_the_position_is_written",
        ),
    ),
    Mutant(
        "records below what is on its way are written",
        "Nothing is written again below a position",
        "data/write/partition_state.py",
        "behind = self.queue[-1].next_offset if self.queue else self.position",
        "behind = self.position",
        (f"{_ZOMBIES}::test_what_lies_below_what_is_on_its_way_is_not_written",),
    ),
    Mutant(
        "the driver shows whichever attempt reports last",
        "Nothing is written again below a position",
        "progress.py",
        "if known is None or self.attempt != known.attempt:",
        "if known is None:",
        (
            f"{_ZOMBIES}::test_the_driver_shows_the_latest_attempt",
            f"{_ZOMBIES}::test_status_shows_the_latest_attempt_of_the_run",
        ),
    ),
    Mutant(
        "a slot chooses the beginning of a partition that has no leader yet",
        "No acknowledged record is lost",
        "control/positions/first_positions.py",
        "                without = frozenset(missing.keys() - begins.keys())\n",
        "                without = frozenset()\n",
        (
            f"{_FIRST_POSITIONS}::test_a_partition_without_a_leader_begins_when_it_has_one",
            f"{_FIRST_POSITIONS}::test_leaders_are_looked_for_between_two_looks_for_topics",
            f"{_FIRST_POSITIONS}::test_what_the_group_gives_begins_at_once_as_its_member",
        ),
    ),
    Mutant(
        "one acknowledgement is enough",
        "No acknowledged record is lost",
        "settings.py",
        "    acks: int = -1\n",
        "    acks: int = 1\n",
        (f"{_PRODUCE}::test_all_replicas_in_sync_acknowledge",),
    ),
    Mutant(
        "the end of a task does not wait for the positions",
        "A target that goes away altogether",
        "data/write/at_least_once.py",
        "            except (Unreachable, ConnectionLost) as error:\n                now =",
        "            except ConnectionLost as error:\n                now =",
        (f"{_PLAIN}::test_a_task_ends_when_positions_are_committed_however_long_that_takes",),
    ),
    Mutant(
        "sequences not begun anew under a new producer id",
        "Order per partition",
        "wire/produce/partition_queue.py",
        "        self.identity, self.next_start = identity, 0\n",
        "        self.identity = identity\n",
        (f"{_PRODUCE}::test_under_a_new_producer_id_sequences_begin_at_nought",),
    ),
    Mutant(
        "a batch sent twice",
        "Order per partition",
        "wire/produce/backlog.py",
        "        state.pending.append(QueuedBatch(batch, records, token, token))\n",
        "        state.pending.append(QueuedBatch(batch, records, token, token))\n"
        "        if token is None or not state.in_flight:\n"
        "            state.pending.append(QueuedBatch(batch, records, None, None))\n",
        (_ONCE_AND_IN_ORDER,),
    ),
    Mutant(
        "a batch that failed goes behind the later ones",
        "Order per partition",
        "wire/produce/partition_queue.py",
        "        self.pending.insert(position, item)\n\n    def cut(",
        "        self.pending.append(item)\n\n    def cut(",
        (_ONCE_AND_IN_ORDER,),
    ),
    Mutant(
        "batches of a partition are on their way to two brokers",
        "Order per partition",
        "wire/produce/partition_queue.py",
        "return not self.recovering and not self.alone and self.node == node",
        "return not self.recovering",
        (_ONCE_AND_IN_ORDER,),
    ),
    Mutant(
        "a second batch under a new producer id before the first is there",
        "Order per partition",
        "wire/produce/partition_queue.py",
        "return not self.recovering and not self.alone and self.node == node",
        "return not self.recovering and self.node == node",
        (_ONCE_AND_IN_ORDER,),
    ),
    Mutant(
        "batches that were joined for the link come apart under one sequence",
        "Order per partition",
        "wire/produce/partition_queue.py",
        "            one.start, one.header = start, None\n",
        "            one.start, one.header = item.start, None\n",
        (f"{_JOINING}::test_a_joined_batch_that_is_too_large_goes_apart",),
    ),
    Mutant(
        "all that were joined for the link are where the first one is",
        "A consumer group that moves to the target loses nothing",
        "wire/produce/backlog.py",
        "                offset += one.records\n",
        "                offset += 0\n",
        (f"{_JOINING}::test_what_waits_goes_as_one_batch_and_each_is_acknowledged",),
    ),
    Mutant(
        "a batch that was sent is joined with others",
        "Order per partition",
        "wire/produce/partition_queue.py",
        "        item.fixed = True\n",
        "        item.fixed = False\n",
        (f"{_JOINING}::test_what_was_sent_alone_is_not_joined_later",),
    ),
    Mutant(
        "a batch in doubt is taken for one that did not arrive",
        "At-least-once",
        "wire/produce/backlog.py",
        "        if code in REFUSED and item.doubtful:\n",
        "        if code in REFUSED and item.doubtful and not item.records:\n",
        (_ONCE_AND_IN_ORDER,),
    ),
    Mutant(
        "records of another writer taken for our own",
        "At-least-once",
        "data/read/resume.py",
        "attributes & CONTROL_BIT or producer_id != wanted or wanted < 0",
        "attributes & CONTROL_BIT or wanted < 0",
        (
            "tests/unit/data/read/test_resume.py::test_only_batches_of_one_producer_without_a_gap_count",
        ),
    ),
    Mutant(
        "offsets without a record skipped as if they had one",
        "At-least-once",
        "data/read/resume.py",
        "                after = first + left[part.tp]\n",
        "                after = part.fetch_offset + left[part.tp]\n",
        ("tests/unit/data/read/test_resume.py::test_visible_records_are_counted_at_the_source",),
    ),
    Mutant(
        "a count at a source that was compacted since",
        "At-least-once",
        "data/read/resume.py",
        "            whole\n            or ends_alike(",
        "            whole\n            or at\n            or ends_alike(",
        ("tests/unit/data/read/test_resume.py::test_behind_holes_both_logs_must_end_alike",),
    ),
    Mutant(
        "the target's end told before the last batch is there",
        "At-least-once",
        "data/write/chunk_offsets.py",
        "return at + count if start + count == self.records else -1",
        "return at + count",
        (
            "tests/unit/data/read/test_resume.py::test_the_end_of_a_chunk_is_known_only_with_its_last_batch",
        ),
    ),
    Mutant(
        "a restarted slot goes on one record too far",
        "At-least-once",
        "data/read/resume.py",
        "found[p.source] = Resumed(at, end, epoch)",
        "found[p.source] = Resumed(at + 1, end, epoch)",
        ("tests/kafka/data/test_exactly_once.py::test_at_least_once_goes_on_at_the_exact_record",),
    ),
    Mutant(
        "timestamps of a batch written wrong",
        "Records are equal",
        "records/header.py",
        "        base_timestamp,\n        max_timestamp,\n        producer_id,",
        "        max_timestamp,\n        max_timestamp,\n        producer_id,",
        ("tests/unit/records/test_header.py::test_stamp_writes_the_header_of_a_producer",),
    ),
    Mutant(
        "log append time lost",
        "Records are equal",
        "records/batch_decisions.py",
        "                or bool(bits & LOG_APPEND_TIME_BIT)\n            )",
        "            )",
        (f"{_SELECT}::test_log_append_time_becomes_every_records_timestamp",),
    ),
    Mutant(
        "batches of two codecs joined",
        "Records are equal",
        "records/batch_decisions.py",
        "            if group is None or group.codec != codec:\n",
        "            if group is None:\n",
        (f"{_SELECT}::test_codecs_are_not_mixed",),
    ),
    Mutant(
        "compaction holes taken for records",
        "Records are equal",
        "records/batch_decisions.py",
        "                last_delta != count - 1\n                or base < self.fetch_offset",
        "                base < self.fetch_offset",
        (f"{_SELECT}::test_compaction_holes_are_closed_and_remembered",),
    ),
    Mutant(
        "records before the position mirrored again",
        "Records are equal",
        "records/batch_decisions.py",
        "            | (bases < max(self.fetch_offset, 0))\n",
        "",
        (f"{_BATCHES}::test_exactly_the_records_in_range_are_carried",),
    ),
    # -- transactions of the source, damage --------------------------------------------------------
    Mutant(
        "aborted batch passed",
        "Aborted data is never seen",
        "records/batch_decisions.py",
        "        return producer_id in self._aborting\n",
        "        return False\n",
        (
            f"{_BATCHES}::test_exactly_committed_records_are_carried",
            f"{_SELECT}::test_aborted_transactions_are_dropped",
        ),
    ),
    Mutant(
        "a transaction after an aborted one dropped with it",
        "Aborted data is never seen",
        "records/batch_decisions.py",
        "                self._aborting.discard(producer_id)\n",
        "                pass\n",
        (f"{_BATCHES}::test_exactly_committed_records_are_carried",),
    ),
    Mutant(
        "control batch passed",
        "Aborted data is never seen",
        "records/batch_decisions.py",
        "            return control\n",
        "            return False\n",
        (f"{_SELECT}::test_control_and_empty_batches_are_passed_over",),
    ),
    Mutant(
        "CRC unchecked",
        "Damage is never produced",
        "records/batch_decisions.py",
        "        if self.rules.check_crcs and crc32c(",
        "        if not self.rules.check_crcs and crc32c(",
        (f"{_BATCHES}::test_a_damaged_byte_under_a_checksum_is_always_seen",),
    ),
    Mutant(
        "CRC of filled batches unchecked",
        "Damage is never produced",
        "records/batch_decisions.py",
        "                or (check_crcs and crc32c(buffer[start + ATTRIBUTES_AT : end]) != crc)\n",
        "",
        (f"{_SELECT}::test_damage_in_a_filled_batch_is_refused",),
    ),
    Mutant(
        "CRC of single records unchecked",
        "Damage is never produced",
        "records/single_record_batches.py",
        "            or (check_crcs and crc32c(buffer[start + ATTRIBUTES_AT : end]) != crc)\n",
        "",
        (f"{_BATCHES}::test_a_damaged_byte_under_a_checksum_is_always_seen",),
    ),
    Mutant(
        "CRC of many small batches unchecked",
        "Damage is never produced",
        "records/batch_decisions.py",
        "        if self.rules.check_crcs and not chain_holds(",
        "        if not self.rules.check_crcs and not chain_holds(",
        (f"{_SELECT}::test_damage_is_refused_and_what_stands_before_is_not_lost",),
    ),
    Mutant(
        "a partition with damage at rest never tried again",
        "Damage is never produced",
        "data/read/intact_records.py",
        "Halt(error.code, reason, retriable=True))\n            pause_s",
        "Halt(error.code, reason))\n            pause_s",
        (f"{_SLOT}::test_damage_is_never_passed_and_fetched_again_at_its_place",),
    ),
)
