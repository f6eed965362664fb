"""Brokers that misbehave, and those that have less than they should."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["BROKERS"]

_BROKERS = "tests/unit/wire/cluster/test_cluster_connections.py"
_COORDINATORS = "tests/unit/wire/cluster/test_coordinators.py"
_CONNECTING = "tests/unit/wire/cluster/test_connecting.py"
_FETCH = "tests/unit/wire/fetch/test_fetcher.py"
_STAGGERED = "tests/unit/wire/fetch/test_staggered.py"
_FRAMING = "tests/unit/wire/net/test_framing.py"
_HELD_BACK = "tests/unit/data/write/test_held_back.py"
_LEADERLESS = "tests/unit/wire/cluster/test_leaderless.py"
_PLAIN = "tests/unit/data/write/test_slot_sink.py"
_POLLER = "tests/unit/wire/net/test_poller.py"
_PRODUCE = "tests/unit/wire/produce/test_producer.py"
_PRODUCER = "tests/property/test_producer_properties.py"
_SLOT = "tests/unit/data/read/test_slot_selection.py"
_STALLED = "tests/unit/wire/test_stalled_brokers.py"
_ONCE_AND_IN_ORDER = f"{_PRODUCER}::test_every_batch_arrives_once_and_in_order"

BROKERS: tuple[Mutant, ...] = (
    # -- brokers that misbehave --------------------------------------------------------------------
    Mutant(
        "a source leader that has moved is not looked for",
        "A leader that moves",
        "wire/fetch/partition_state.py",
        "        if code in LEADERSHIP:\n            connections.mark_stale(self.tp)\n",
        "        if code in LEADERSHIP:\n",
        (f"{_FETCH}::test_a_leader_that_has_moved_is_followed",),
    ),
    Mutant(
        "metadata of a broker that lags behind moves a leader back",
        "A leader that moves",
        "wire/cluster/metadata.py",
        "        return self.sure and 0 <= other.epoch < self.epoch and self.node in brokers\n",
        "        return False\n",
        (f"{_BROKERS}::test_metadata_with_an_older_epoch_moves_no_leader",),
    ),
    Mutant(
        "the positions of all partitions go in one request",
        "At-least-once",
        "wire/cluster/messages.py",
        "_COMMIT_BYTES_MAX = 512 << 10\n",
        "_COMMIT_BYTES_MAX = 512 << 30\n",
        (f"{_COORDINATORS}::test_a_large_commit_goes_in_several_requests",),
    ),
    Mutant(
        "a target leader that has moved is not looked for",
        "A leader that moves",
        "wire/produce/backlog.py",
        "            if code in LEADERSHIP:\n"
        "                self.connections.mark_stale(state.tp)\n",
        "",
        (_ONCE_AND_IN_ORDER,),
    ),
    Mutant(
        "a batch sent again gets another sequence",
        "A broker that is killed and comes back",
        "wire/produce/partition_queue.py",
        "        self.in_flight.remove(item)\n        position = 0\n",
        "        self.in_flight.remove(item)\n        item.start, item.header = -1, None\n"
        "        position = 0\n",
        (_ONCE_AND_IN_ORDER,),
    ),
    Mutant(
        "batches of a lost connection forgotten",
        "A broker that is killed and comes back",
        "wire/produce/producer.py",
        "                    state.requeue(item)\n",
        "                    state.acknowledge(item, 0.0)\n",
        (f"{_PRODUCE}::test_a_connection_without_an_answer_is_given_up_and_its_batches_go_again",),
    ),
    Mutant(
        "the rest of a response is waited for",
        "A broker that stalls on an open connection",
        "wire/net/framing.py",
        "                data = os.read(self.socket.fileno(), size)\n",
        "                data = self.socket.recv(size)\n",
        (f"{_FRAMING}::test_a_small_answer_that_stops_half_way_keeps_nobody_waiting",),
    ),
    Mutant(
        "a source broker that reads nothing is waited for",
        "A broker that stalls on an open connection",
        "wire/fetch/fetcher.py",
        "        connection.begin_frame(",
        "        connection.send_frame(",
        (f"{_STALLED}::test_a_source_broker_that_reads_nothing_keeps_only_its_own_partitions",),
    ),
    Mutant(
        "metadata is waited for until it arrives",
        "A broker that stalls on an open connection",
        "wire/cluster/cluster_connections.py",
        "        if not self.generation:\n",
        "        if True:\n",
        (f"{_STALLED}::test_a_broker_that_does_not_answer_metadata_keeps_nobody_waiting",),
    ),
    Mutant(
        "no source broker is asked while another one owes an answer",
        "A hanging source broker",
        "wire/fetch/fetcher.py",
        "                if channel not in self._requests:\n",
        "                if not self._requests:\n",
        (f"{_FETCH}::test_a_broker_that_hangs_keeps_no_other_from_being_asked",),
    ),
    Mutant(
        "no target broker is written to while another one owes an answer",
        "A hanging target broker",
        "wire/produce/producer.py",
        "        while states and len(requests) < self._in_flight_max:\n",
        "        while states and not any(self._requests.values()):\n",
        (f"{_PRODUCE}::test_a_broker_that_hangs_delays_its_own_partitions_only",),
    ),
    Mutant(
        "a target broker that hangs is waited for a thousand times as long",
        "A broker that leads some partitions and follows in others may hang: all go on without it",
        "wire/produce/producer.py",
        "            now + timeout_s,\n",
        "            now + 1_000 * timeout_s,\n",
        (f"{_PRODUCE}::test_a_connection_without_an_answer_is_given_up_and_its_batches_go_again",),
    ),
    Mutant(
        "each mode has positions of its own",
        "A flow may change from at-least-once to exactly-once and back",
        "settings.py",
        'return self.group_id or f"__mirror.{self.name}"',
        'return self.group_id or f"__mirror.{self.name}" + "-exact" * self.exactly_once',
        ("tests/unit/control/topics/test_sync.py::test_positions_are_in_one_group_in_both_modes",),
    ),
    Mutant(
        "a source connection that went silent is kept",
        "A half-open connection",
        "wire/fetch/fetcher.py",
        "            if now >= request.deadline and not request.connection.readable():\n",
        "            if now >= 2 * request.deadline and not request.connection.readable():\n",
        (f"{_FETCH}::test_a_connection_without_an_answer_is_given_up_and_made_anew",),
    ),
    Mutant(
        "a partition whose connection broke is not asked for again",
        "Connections that break again and again",
        "wire/fetch/fetcher.py",
        "                request.free()\n                if request.helps",
        "                if request.helps",
        (f"{_FETCH}::test_a_connection_that_breaks_loses_no_place",),
    ),
    Mutant(
        "an answer to another request is taken",
        "Connections that break again and again",
        "wire/fetch/fetcher.py",
        "            if _I32.unpack_from(frame)[0] != request.correlation:\n",
        "            if _I32.unpack_from(frame)[0] < 0:\n",
        (f"{_FETCH}::test_an_answer_to_another_request_is_not_taken",),
    ),
    Mutant(
        "a damaged batch is passed over",
        "A batch damaged on the way from the source",
        "data/read/intact_records.py",
        "            self._note_corrupt(part.tp, error)\n",
        "            self._note_corrupt(part.tp, error)\n"
        "            self._fetcher.advance(part.tp, part.high_watermark)\n",
        (f"{_SLOT}::test_damage_is_never_passed_and_fetched_again_at_its_place",),
    ),
    Mutant(
        "a batch that the target found damaged is not sent again",
        "A batch damaged on the way to the target",
        "wire/cluster/error_codes.py",
        '            "CORRUPT_MESSAGE",\n',
        "",
        (f"{_PRODUCE}::test_what_passes_by_itself_is_tried_again_for_as_long_as_it_takes",),
    ),
    Mutant(
        "the follower in our rack is not asked",
        "With `client.rack`",
        "wire/fetch/responses.py",
        "        if part.replica >= 0 and not part.records and",
        "        if part.replica < -1 and not part.records and",
        (f"{_FETCH}::test_the_follower_in_our_rack_serves_until_it_fails",),
    ),
    Mutant(
        "a follower that has died is asked on",
        "With `client.rack`",
        "wire/fetch/fetcher.py",
        "                        state.leave_replica(self._clock())\n",
        "                        pass\n",
        (f"{_FETCH}::test_the_follower_in_our_rack_serves_until_it_fails",),
    ),
    Mutant(
        "the source's quota is not kept",
        "A quota's waiting time",
        "wire/fetch/responses.py",
        "                self._pauses.wait(one, now + response.throttle_ms / 1000)\n",
        "                self._pauses.wait(one, now)\n",
        (f"{_FETCH}::test_a_quotas_waiting_time_is_kept",),
    ),
    Mutant(
        "the target's quota is not kept",
        "A quota's waiting time",
        "wire/produce/producer.py",
        "            self._not_before[connection] = now + throttle_ms / 1000\n",
        "            self._not_before[connection] = now\n",
        (f"{_PRODUCE}::test_a_quotas_waiting_time_is_kept",),
    ),
    Mutant(
        "who no longer leads ends the partition",
        "Brokers that are restarted one after the other",
        "wire/cluster/error_codes.py",
        '            "NOT_LEADER_OR_FOLLOWER",\n',
        "",
        (_ONCE_AND_IN_ORDER, f"{_FETCH}::test_a_leader_that_has_moved_is_followed"),
    ),
    # -- less than brokers should have -------------------------------------------------------------
    Mutant(
        "an answer that comes in pieces is taken for a whole one",
        "A slow network costs time only",
        "wire/net/framing.py",
        "            position += count\n",
        "            position += count\n            break\n",
        (
            "tests/unit/wire/net/test_framing.py"
            "::test_an_answer_larger_than_the_sockets_buffers_is_read_to_its_end",
        ),
    ),
    Mutant(
        "an answer that is read late counts as none",
        "A slow network costs time only",
        "wire/fetch/fetcher.py",
        "            if now >= request.deadline and not request.connection.readable():\n",
        "            if now >= request.deadline:\n",
        (f"{_FETCH}::test_an_answer_that_came_in_time_and_is_read_late_counts",),
    ),
    Mutant(
        "a target connection that went silent is kept",
        "The network to a whole cluster may be cut",
        "wire/produce/producer.py",
        "                if now >= requests[0].deadline:\n",
        "                if now >= 2 * requests[0].deadline:\n",
        (f"{_PRODUCE}::test_a_connection_without_an_answer_is_given_up_and_its_batches_go_again",),
    ),
    Mutant(
        "whoever needs a broker waits for its handshake",
        "A broker that accepts connections and is silent in the handshake",
        "wire/cluster/cluster_connections.py",
        "            attempt.wait(wait_s)\n",
        "            attempt.wait(None)\n",
        (f"{_CONNECTING}::test_a_silent_broker_keeps_the_others_from_nothing",),
    ),
    Mutant(
        "a slow target broker takes all the room",
        "A slow or far target broker delays its own partitions",
        "data/write/held_back.py",
        "            self._suspect(now)\n",
        "            pass\n",
        (f"{_HELD_BACK}::test_a_slow_broker_holds_up_its_own_partitions_only",),
    ),
    Mutant(
        "a frame is sent into the middle of another one",
        "A slow or far target broker delays its own partitions",
        "wire/produce/producer.py",
        "        if connection.unsent:\n            self.blocked = True",
        "        if False:\n            self.blocked = True",
        (f"{_PRODUCE}::test_a_broker_that_takes_nothing_keeps_the_others_from_nothing",),
    ),
    Mutant(
        "a missing leader is looked for all the time",
        "What has no leader costs the others nothing",
        "wire/cluster/searches.py",
        "search.due = now + search.pause_s",
        "search.due = now",
        (
            f"{_LEADERLESS}::test_a_topic_without_a_leader_costs_a_small_request_in_five_seconds",
            f"{_BROKERS}::test_a_partition_without_leader_is_asked_about_less_and_less_often",
        ),
    ),
    Mutant(
        "a missing leader is looked for among all topics",
        "What has no leader costs the others nothing",
        "wire/cluster/cluster_connections.py",
        "wanted = self._searches.topics(now)",
        "self._searches.topics(now)",
        (f"{_LEADERLESS}::test_a_topic_without_a_leader_costs_a_small_request_in_five_seconds",),
    ),
    Mutant(
        "a slot waits for the answer about a missing leader",
        "What has no leader costs the others nothing",
        "wire/cluster/metadata.py",
        "            response = connection.finish_now(",
        "            connection.readable(1.0)\n            response = connection.finish_now(",
        (f"{_BROKERS}::test_a_search_keeps_nobody_waiting_for_a_broker_that_is_far_or_hangs",),
    ),
    Mutant(
        "a missing leader is looked for over new connections",
        "What has no leader costs the others nothing",
        "wire/cluster/metadata.py",
        "            self._kept = connection\n",
        "            connection.close()\n",
        (
            f"{_LEADERLESS}::test_a_topic_without_a_leader_costs_a_small_request_in_five_seconds",
            f"{_BROKERS}::test_searches_ask_for_their_topics_alone_over_one_connection",
        ),
    ),
    Mutant(
        "a leader that denies it waits for those that are missing",
        "What has no leader costs the others nothing",
        "wire/cluster/searches.py",
        "self.due = min(self.due, search.due)",
        "self.due = min(self.due, search.due) if len(self._open) < 2 else self.due",
        (
            f"{_BROKERS}::test_a_leader_that_denies_it_is_looked_for_at_once_whoever_else_is_missing",
        ),
    ),
    Mutant(
        "a record is sent on a connection that has ended",
        "On a connection that a broker has closed",
        "wire/produce/producer.py",
        "if not requests and connection.ended_idle():",
        "if False:",
        (f"{_POLLER}::test_no_record_is_sent_on_a_connection_that_the_broker_has_closed",),
    ),
    Mutant(
        "a fetch is sent on a connection that has ended",
        "On a connection that a broker has closed",
        "wire/fetch/fetcher.py",
        "if connection is not None and connection.ended_idle():",
        "if False:",
        (f"{_POLLER}::test_no_fetch_is_sent_on_a_connection_that_the_broker_has_closed",),
    ),
    Mutant(
        "each answer goes through all partitions when one has stopped",
        "One bad partition does not stop the rest",
        "data/write/partition_state.py",
        "return halts > 0 and (halts != seen or again or bool(self._beside))",
        "return halts > 0",
        (f"{_PLAIN}::test_a_halt_is_looked_at_once_and_not_at_each_answer",),
    ),
    Mutant(
        "a gap record that is refused is not noticed later",
        "Lost source data is reported",
        "data/write/partition_state.py",
        "return halts > 0 and (halts != seen or again or bool(self._beside))",
        "return halts > 0 and (halts != seen or again)",
        (f"{_PLAIN}::test_a_gap_that_cannot_be_written_down_stops_its_partition",),
    ),
    Mutant(
        "a partition without a leader is not told by its name",
        "A partition without a leader",
        "wire/fetch/partition_state.py",
        "            code = connections.leaderless.get(self.tp, told)\n",
        "            code = UNKNOWN_TOPIC_OR_PARTITION\n",
        (f"{_FETCH}::test_a_partition_without_a_leader_waits_alone_and_is_told",),
    ),
    Mutant(
        "a partition without a leader is halted for good",
        "A partition without a leader",
        "wire/fetch/partition_state.py",
        "            self.halt = Halt(error_name(code), reason, retriable=True)\n",
        "            self.halt = Halt(error_name(code), reason)\n",
        (f"{_FETCH}::test_a_partition_without_a_leader_waits_alone_and_is_told",),
    ),
    Mutant(
        "a broker without room on its disk ends the partition",
        "A target broker that ended because its disk was full",
        "wire/cluster/error_codes.py",
        '            "KAFKA_STORAGE_ERROR",\n',
        "",
        (
            f"{_PRODUCE}::test_what_passes_by_itself_is_tried_again_for_as_long_as_it_takes",
            f"{_FETCH}::test_a_leader_that_has_moved_is_followed",
        ),
    ),
    Mutant(
        "the mirror's own topics keep the mirror's time",
        "## When clocks differ",
        "control/topics/compacted.py",
        '"message.timestamp.type": "LogAppendTime"',
        '"message.timestamp.type": "CreateTime"',
        ("tests/unit/control/topics/test_sync.py::test_internal_topics",),
    ),
    Mutant(
        "a process that failed is told to have ended well",
        "## When processes die",
        "data/workers/prefork_server.py",
        "os.waitstatus_to_exitcode(status)",
        "0",
        (
            "tests/unit/data/workers/test_prefork_server.py::test_streams_environment_directory_arguments_and_exit_code",
        ),
    ),
    Mutant(
        "what a killed driver had started lives on",
        "## When processes die",
        "data/workers/prefork_server.py",
        "                    self._kill_all()\n",
        "",
        (
            "tests/unit/data/workers/test_prefork_server.py::test_with_the_driver_all_that_it_had_started_is_killed",
        ),
    ),
    Mutant(
        "a later attempt of a task keeps the epoch's other slots waiting",
        "## When processes die",
        "data/coordination/slot_plan.py",
        "        return max(0.0 if attempt else epoch_s / 2, epoch_s - spent_s)\n",
        "        return epoch_s\n",
        (
            "tests/unit/data/coordination/test_slot_plan.py::test_a_later_attempt_ends_with_the_other_slots",
        ),
    ),
    Mutant(
        "what several requests read begins where the oldest of them does",
        "Order per partition",
        "wire/fetch/responses.py",
        "            state.offset if passed else requested,\n",
        "            requested,\n",
        (f"{_STAGGERED}::test_a_connection_that_is_cut_costs_no_record",),
    ),
    Mutant(
        "a response that was asked for before a halt is used",
        "Order per partition",
        "wire/fetch/in_flight.py",
        "            request.void = request.helps is not None\n",
        "            request.void = False\n",
        (f"{_STAGGERED}::test_after_news_of_a_partition_requests_under_way_are_void",),
    ),
    Mutant(
        "damage that several requests find is as many tries",
        "Damage is never produced",
        "wire/fetch/responses.py",
        "        if request.sent_at < state.failed_at:\n",
        "        if request.sent_at < float('-inf'):\n",
        (f"{_STAGGERED}::test_damage_that_several_requests_find_is_one_try",),
    ),
    Mutant(
        "whoever got data is first again",
        "## Under pressure",
        "wire/fetch/responses.py",
        "            self._states[tp] = self._states.pop(tp)\n",
        "            self._states[tp] = state\n",
        (f"{_FETCH}::test_who_got_data_goes_to_the_back",),
    ),
    Mutant(
        "the partitions of a topic are asked for together",
        "## Under pressure",
        "wire/fetch/messages.py",
        "in groupby(wanted, _topic)]\n",
        "in groupby(sorted(wanted, key=_topic), _topic)]\n",
        (f"{_FETCH}::test_who_got_data_goes_behind_partitions_of_other_topics",),
    ),
    Mutant(
        "what waits for acknowledgements is not counted",
        "## Under pressure",
        "wire/produce/backlog.py",
        "        self.bytes_waiting += len(batch)\n",
        "        self.bytes_waiting += 0\n",
        (_ONCE_AND_IN_ORDER,),
    ),
)
