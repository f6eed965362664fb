"""Transforms: records in, SQL, records out."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["TRANSFORMS"]

_COMPARED = "tests/unit/data/transform/test_compared.py"
_ENDS = "tests/unit/data/transform/test_transforms.py"
_FILTERED = "tests/unit/data/write/test_filtered_records.py"
_FUNCTIONS = "tests/unit/data/transform/test_functions.py"
_PLAN = "tests/unit/data/transform/test_plan.py"
_SMTS = "tests/unit/data/transform/test_smts.py"
_TABLES = "tests/unit/control/flows/test_tables.py"
_BYTES = "tests/unit/data/transform/smts/test_chain.py"
_KEPT = "tests/unit/records/test_kept_records.py"
_SINK = "tests/unit/data/transform/smts/test_sink.py"

TRANSFORMS: tuple[Mutant, ...] = (
    # -- positions and order -----------------------------------------------------------------------
    Mutant(
        "positions stay where all records are filtered",
        "docs/transforms.md",
        "data/transform/pack.py",
        "            next_offset=end,\n            record_count=count,\n",
        "            next_offset=end if count else before,\n            record_count=count,\n",
        (f"{_ENDS}::test_the_position_moves_when_everything_was_filtered",),
    ),
    Mutant(
        "filtered records have offsets at the target",
        "A consumer group that moves to the target loses nothing",
        "data/transform/pack.py",
        "            runs=merge_runs(offsets, np.ones(count, np.int64)),\n",
        "            runs=(),\n",
        (
            f"{_ENDS}::test_a_filter_keeps_records_and_runs_of_source_offsets",
            f"{_ENDS}::test_many_rows_in_messages_of_any_size_lose_and_repeat_nothing",
        ),
    ),
    Mutant(
        "a note overtakes the records before it",
        "Order per partition",
        "data/transform/pack.py",
        """            if len(rows):
                first, end = after + int(rows[0]), after + int(rows[-1]) + 1
                yield from self._take(batch.slice(first, end - first))
            if head < batch.num_rows:
                yield head
                yield from self._handled()
                yield from self._unreadable()
""",
        """            if head < batch.num_rows:
                yield head
                yield from self._handled()
                yield from self._unreadable()
            if len(rows):
                first, end = after + int(rows[0]), after + int(rows[-1]) + 1
                yield from self._take(batch.slice(first, end - first))
""",
        (f"{_ENDS}::test_a_note_does_not_overtake_the_records_before_it",),
    ),
    Mutant(
        "later portions of a chunk begin again at its first source offset",
        "A consumer group that moves to the target loses nothing",
        "data/transform/portions.py",
        "        done = end\n",
        "        done = 0\n",
        (f"{_ENDS}::test_source_offsets_of_batches_that_were_joined_on_the_way",),
    ),
    Mutant(
        "results that are missing at the end of a task are not missed",
        "No acknowledged record is lost",
        "data/transform/pack.py",
        "        if self._waiting:\n            raise Defect(",
        "        if self._waiting and self._results:\n            raise Defect(",
        (f"{_ENDS}::test_lost_results_end_the_task",),
    ),
    # -- what is in a record -----------------------------------------------------------------------
    Mutant(
        "a tombstone becomes an empty value",
        "Records are equal",
        "data/transform/results.py",
        "    return Varbin(np.where(valid, sizes, -1), data",
        "    return Varbin(np.where(valid, sizes, 0), data",
        (f"{_ENDS}::test_replaced_fields_tombstones_headers_and_timestamps",),
    ),
    Mutant(
        "the SQL sees a tombstone as an empty value",
        "Records are equal",
        "data/transform/unpack.py",
        "    valid = pa.array(column.sizes >= 0)\n",
        "    valid = pa.array(column.sizes >= -1)\n",
        (f"{_ENDS}::test_a_tombstone_reaches_the_sql_as_null",),
    ),
    Mutant(
        "a header without a value is lost",
        "Records are equal",
        "data/transform/results.py",
        '        if one is not None and one["key"] is not None',
        '        if one is not None and one["value"] is not None',
        (f"{_ENDS}::test_replaced_fields_tombstones_headers_and_timestamps",),
    ),
    Mutant(
        "a timestamp that the SQL gives is lost",
        "docs/transforms.md",
        "data/transform/results.py",
        "        timestamp=timestamp,\n",
        "        timestamp=None,\n",
        (f"{_ENDS}::test_a_replaced_timestamp",),
    ),
    Mutant(
        "the record behind an appended one is the broker's, too",
        "docs/transforms.md",
        "data/transform/unpack.py",
        "        types[(offsets >= first) & (offsets < end)] = 1\n",
        "        types[(offsets >= first) & (offsets <= end)] = 1\n",
        (f"{_ENDS}::test_who_stamped_a_record_reaches_the_sql",),
    ),
    # -- what the SQL says -------------------------------------------------------------------------
    Mutant(
        "where that is null counts as true",
        "docs/transforms.md",
        "data/transform/plan.py",
        "        record = F.when(where, record)\n",
        "        record = F.when(F.coalesce(where, F.lit(True)), record)\n",
        (f"{_PLAN}::test_a_filtered_record_is_a_null_and_a_failed_one_another",),
    ),
    Mutant(
        "hashes without the salt",
        "docs/transforms.md",
        "data/transform/functions.py",
        "        salt = flow.hash_salt.encode() if flow.hash_salt else None\n",
        '        salt = b"" if flow.hash_salt else None\n',
        (f"{_FUNCTIONS}::test_hash_is_sha256_of_salt_and_value",),
    ),
    Mutant(
        "of two fields of one name the second is not masked",
        "docs/transforms.md",
        "data/transform/java/JsonFunction.java",
        "            if (drops || step != function.names.length) {\n",
        "            if (drops || made != null || step != function.names.length) {\n",
        (f"{_FUNCTIONS}::test_mask_replaces_the_field_alone",),
    ),
    Mutant(
        "what follows the document is no error",
        "docs/transforms.md",
        "data/transform/java/JsonFunction.java",
        "            if (at < text.length) {\n                throw wrong();\n            }\n",
        "            if (at < text.length && made == null) {\n                throw wrong();\n"
        "            }\n",
        (f"{_FUNCTIONS}::test_what_is_no_json_fails_and_never_passes",),
    ),
    Mutant(
        "a predicate's negate is ignored",
        "docs/compatibility.md",
        "config/mm2/smt_sql.py",
        '    return f"(NOT {found})" if one.negate else found\n',
        "    return found\n",
        (f"{_SMTS}::test_the_sql_does_to_records_what_java_does",),
    ),
    # -- single message transforms on bytes --------------------------------------------------------
    Mutant(
        "an SMT on bytes ignores its predicate's negate",
        "docs/compatibility.md",
        "data/transform/smts/chain.py",
        "                applies = headers.has(one.argument.encode()) ^ one.negate\n",
        "                applies = headers.has(one.argument.encode())\n",
        (
            f"{_BYTES}::test_the_chains_do_to_records_what_java_does",
            f"{_BYTES}::test_random_chains_are_what_the_documentation_says",
        ),
    ),
    Mutant(
        "names of headers are told apart by their last eight bytes",
        "docs/compatibility.md",
        "data/transform/smts/header_list.py",
        "        ends = [*range(len(name), 0, -_WORD_BYTES)]\n",
        "        ends = [len(name)]\n",
        (f"{_BYTES}::test_names_of_any_length_are_told_apart",),
    ),
    Mutant(
        "a batch with the broker's time passes as it is",
        "docs/transforms.md",
        "records/kept.py",
        '    passing &= (heads["attributes"].astype(np.int64) & LOG_APPEND_TIME_BIT) == 0\n',
        "",
        (f"{_BYTES}::test_what_a_target_would_refuse_is_written_again",),
    ),
    Mutant(
        "a batch that passes as it is keeps its base offset",
        "Gap records and letters count with the records around them",
        "records/kept.py",
        "        base = _BASE_OFFSET.pack(int(first_numbers[batch]))\n",
        "        base = _BASE_OFFSET.pack(int(found.columns.offset[begins[batch]]))\n",
        (f"{_SINK}::test_refused_records_have_their_source_offsets",),
    ),
    Mutant(
        "positions stay where SMTs on bytes leave out all records",
        "docs/transforms.md",
        "data/transform/pack.py",
        "        next_offset=made.next_offset,\n",
        "        next_offset=made.next_offset if count else waiting.before,\n",
        (f"{_BYTES}::test_a_chunk_of_which_nothing_stays_moves_the_position",),
    ),
    Mutant(
        "an SMT on bytes ignores negate of RecordIsTombstone",
        "docs/compatibility.md",
        "data/transform/smts/chain.py",
        "                applies = tombstones ^ one.negate\n",
        "                applies = tombstones\n",
        (f"{_BYTES}::test_the_chains_do_to_records_what_java_does",),
    ),
    Mutant(
        "of two headers of one name DropHeaders leaves the second",
        "docs/compatibility.md",
        "data/transform/smts/header_list.py",
        "            match &= rows[one.rows]\n",
        "            match &= rows[one.rows] & ~touched[one.rows]\n",
        (f"{_BYTES}::test_the_chains_do_to_records_what_java_does",),
    ),
    Mutant(
        "a header that InsertHeader added is not dropped",
        "docs/compatibility.md",
        "data/transform/smts/header_list.py",
        "            (name, held & ~rows if name in names else held) for ",
        "            (name, held) for ",
        (f"{_BYTES}::test_the_chains_do_to_records_what_java_does",),
    ),
    Mutant(
        "HasHeaderKey finds a header that was dropped before",
        "docs/compatibility.md",
        "data/transform/smts/header_list.py",
        "                match &= one.alive\n",
        "                match |= one.alive & match\n",
        (f"{_BYTES}::test_the_chains_do_to_records_what_java_does",),
    ),
    Mutant(
        "an inserted header comes before the others",
        "docs/compatibility.md",
        "data/transform/smts/header_list.py",
        """            at += stated_bytes
            if len(rows):
                before = np.cumsum(sizes) - sizes
                first = np.cumsum(held_bytes) - held_bytes
                copy_items(flat, begin, out, at[rows] + before - first[rows], sizes)
            at += held_bytes
            for data, places in inserted:
                if len(places):
                    none = np.zeros(len(places), np.int64)
                    copy_items(data, none, out, at[places], none + len(data))
                    at[places] += len(data)
""",
        """            at += stated_bytes
            for data, places in inserted:
                if len(places):
                    none = np.zeros(len(places), np.int64)
                    copy_items(data, none, out, at[places], none + len(data))
                    at[places] += len(data)
            if len(rows):
                before = np.cumsum(sizes) - sizes
                first = np.cumsum(held_bytes) - held_bytes
                copy_items(flat, begin, out, at[rows] + before - first[rows], sizes)
""",
        (f"{_BYTES}::test_the_chains_do_to_records_what_java_does",),
    ),
    Mutant(
        "SMTs see names of headers that are no UTF-8 as bytes",
        "docs/compatibility.md",
        "data/transform/smts/chain.py",
        "            if headers is None or (self._changes and not headers.ascii()):\n",
        "            if headers is None:\n",
        (f"{_BYTES}::test_random_chains_are_what_the_documentation_says",),
    ),
    Mutant(
        "of records that are read one by one a predicate's negate is ignored",
        "docs/compatibility.md",
        "data/transform/smts/chain.py",
        "                    if true is one.negate:\n",
        "                    if not true:\n",
        (f"{_BYTES}::test_random_chains_are_what_the_documentation_says",),
    ),
    Mutant(
        "a chunk's time is that of a record that was left out",
        "docs/transforms.md",
        "data/transform/smts/rebuilt.py",
        "            int(columns.timestamp.take(rows).max()) if",
        "            int(columns.timestamp.max()) if",
        (f"{_BYTES}::test_random_chains_are_what_the_documentation_says",),
    ),
    Mutant(
        "a portion's last record is read again after a crash",
        "docs/transforms.md",
        "data/transform/smts/rebuilt.py",
        "            next_offset if found.last else int(columns.offset[-1]) + 1,\n",
        "            next_offset if found.last else int(columns.offset[-1]),\n",
        (f"{_BYTES}::test_a_large_chunk_is_several_with_bounded_memory",),
    ),
    Mutant(
        "a header whose size says that it cannot be is believed",
        "docs/transforms.md",
        "data/transform/smts/header_list.py",
        "                if not _within(value_bytes, -1, len(flat)):\n",
        "                if not _within(value_bytes, -2, len(flat)):\n",
        (f"{_BYTES}::test_headers_that_cannot_be_read_have_no_names",),
    ),
    Mutant(
        "what is left behind a record's headers is not missed",
        "docs/transforms.md",
        "data/transform/smts/header_list.py",
        "        return cls(found, fields, steps) if np.array_equal(at, rest_end) else None\n",
        "        return cls(found, fields, steps)\n",
        (f"{_BYTES}::test_headers_that_cannot_be_read_have_no_names",),
    ),
    # -- what is kept of raw batches ---------------------------------------------------------------
    Mutant(
        "a batch passes whole though a record of it was left out",
        "docs/transforms.md",
        "records/kept.py",
        "    passing: Flags = np.logical_and.reduceat(same & ",
        "    passing: Flags = np.logical_or.reduceat(same & ",
        (
            f"{_BYTES}::test_a_batch_that_keeps_all_records_passes_as_it_is",
            f"{_KEPT}::test_a_large_batch_that_is_kept_passes_as_it_is_and_its_neighbours_are_cut",
        ),
    ),
    Mutant(
        "a batch passes as it was though headers changed",
        "docs/transforms.md",
        "records/kept.py",
        "    same = kept if touched is None else kept & ~touched\n",
        "    same = kept\n",
        (f"{_BYTES}::test_random_chains_are_what_the_documentation_says",),
    ),
    Mutant(
        "records behind one that is left out keep the distance",
        "docs/transforms.md",
        "records/kept.py",
        "    columns = replace(new.columns, offset=np.arange(len(new.columns.offset)))\n",
        "    columns = replace(new.columns, offset=new.columns.offset - new.columns.offset[0])\n",
        (f"{_KEPT}::test_the_kept_records_arrive_and_no_others",),
    ),
    Mutant(
        "a batch whose records have gaps passes",
        "docs/transforms.md",
        "records/kept.py",
        '    passing &= heads["last_offset_delta"].astype(np.int64) == counts - 1\n',
        "",
        (f"{_BYTES}::test_what_a_target_would_refuse_is_written_again",),
    ),
    Mutant(
        "a batch whose records are numbered wrongly passes",
        "docs/transforms.md",
        "records/kept.py",
        "reduceat(same & (origin.deltas == numbers), begins)",
        "reduceat(same & (numbers >= 0), begins)",
        (f"{_BYTES}::test_a_batch_whose_records_are_numbered_wrongly_is_written_again",),
    ),
    Mutant(
        "batches that are written again come behind those that pass",
        "Order per partition",
        "records/kept.py",
        "    return [piece for batch in sorted(pieces) for piece in pieces[batch]]\n",
        "    return [piece for batch in pieces for piece in pieces[batch]]\n",
        (f"{_KEPT}::test_a_large_batch_that_is_kept_passes_as_it_is_and_its_neighbours_are_cut",),
    ),
    # -- records on which the SQL fails ------------------------------------------------------------
    Mutant(
        "a record on which the SQL fails is left out in silence",
        "No acknowledged record is lost",
        "data/transform/pack.py",
        "        bad, record = np.flatnonzero(~is_valid(results)), ",
        "        bad, record = np.flatnonzero(~is_valid(results))[:0], ",
        (
            f"{_ENDS}::test_records_on_which_the_sql_fails_are_handed_over_as_they_are",
            f"{_ENDS}::test_a_partition_stops_before_the_first_record_on_which_the_sql_fails",
        ),
    ),
    Mutant(
        "records behind the one that pauses the partition are written",
        "No acknowledged record is lost",
        "data/transform/pack.py",
        "                kept[rows[0] :] = False\n",
        "                kept[rows[0]] = False\n",
        (f"{_ENDS}::test_a_partition_stops_before_the_first_record_on_which_the_sql_fails",),
    ),
    Mutant(
        "a dead letter is not the record that it was at the source",
        "Gap records and letters count with the records around them",
        "data/transform/results.py",
        "            (tuple(one) if one else () for one in headers),\n",
        "            (() for _ in headers),\n",
        (f"{_ENDS}::test_records_on_which_the_sql_fails_are_handed_over_as_they_are",),
    ),
    Mutant(
        "a position passes failed records before their gap is written",
        "Gap records and letters count with the records around them",
        "data/write/slot_sink.py",
        "                pending.failed, failed = divided_at(failed, chunk.next_offset)\n",
        "                last = chunk.next_offset == chunks[-1].next_offset\n"
        "                pending.failed = failed if last else ()\n",
        (f"{_FILTERED}::test_no_position_passes_a_failed_record_before_its_gap_is_written",),
    ),
    Mutant(
        "gaps behind filtered records name other offsets",
        "Gap records and letters count with the records around them",
        "data/write/partition_state.py",
        "        if self.sources is None:\n            return records\n",
        "        if self.sources is None or not self.lane.routed:\n            return records\n",
        (f"{_FILTERED}::test_refused_records_behind_filtered_ones_have_their_source_offsets",),
    ),
    # -- static tables -----------------------------------------------------------------------------
    Mutant(
        "a standby takes over with the rows that it read when it started",
        "docs/transforms.md",
        "control/flows/tables.py",
        "        read = self._part.reload_tables(self._name)\n        self._tell(read)\n",
        "        read = self._part.tables(self._name)\n        self._tell(read)\n",
        (f"{_TABLES}::test_a_standby_reads_its_tables_again_when_it_takes_over",),
    ),
    Mutant(
        "a standby takes over with rows that may be older than those before",
        "docs/transforms.md",
        "control/flows/tables.py",
        "            if one.fault:\n                raise TopicError(\n",
        "            if one.fault and not orders:\n                raise TopicError(\n",
        (f"{_TABLES}::test_a_standby_whose_rows_may_be_older_does_not_take_over",),
    ),
    # -- comparisons -------------------------------------------------------------------------------
    Mutant(
        "a comparison wants records behind the one that pauses the partition",
        "docs/transforms.md",
        "data/transform/compared.py",
        "                    carried = _first(carried, kept)\n",
        "                    carried = _first(carried, max(kept, len(carried.offsets)))\n",
        (f"{_COMPARED}::test_they_end_where_the_partition_pauses",),
    ),
    Mutant(
        "a function that differs from run to run is compared",
        "docs/transforms.md",
        "data/transform/compared.py",
        "        if not all(each.deterministic() for each in expressions):\n",
        "        if not any(each.deterministic() for each in expressions):\n",
        (f"{_COMPARED}::test_a_function_that_gives_other_records_each_time_is_found",),
    ),
)
