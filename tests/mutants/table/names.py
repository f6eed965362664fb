"""What MirrorMaker 2 does, too, and names at the target."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["NAMES"]

_ACLS = "tests/unit/control/topics/test_acl_sync.py"
_CHECKPOINTS = "tests/unit/control/groups/test_checkpoints.py"
_NAMES = "tests/unit/control/topics/test_remote_names.py"
_ADDITIONS = "tests/unit/data/read/test_additions.py"
_PUBLICATION = "tests/unit/control/flows/test_publication.py"
_SHARES = "tests/unit/internal_topics/epochs/test_shares.py"
_OWNERS = "tests/unit/internal_topics/epochs/test_share_properties.py"
_ONE_OWNER = f"{_OWNERS}::test_a_partition_has_one_owner"
_SYNCS = "tests/unit/data/write/test_offset_sync_writer.py"
_MOVE_DOCUMENTS = "tests/unit/internal_topics/epochs/test_moves.py"
_MOVING = "tests/unit/control/flows/test_moving.py"
_RELEASES = "tests/unit/data/write/test_releases.py"
_SLOT_SHARE = "tests/unit/data/read/test_slot_share.py"

_MOVES = "A partition that gets another slot"

NAMES: tuple[Mutant, ...] = (
    # -- what MirrorMaker 2 does, too --------------------------------------------------------------
    Mutant(
        "ACL rule inverted",
        "docs/compatibility.md",
        "control/topics/acl_sync.py",
        'or (allowed and binding.operation == "WRITE")',
        'or (allowed and binding.operation != "WRITE")',
        (
            f"{_ACLS}::test_what_becomes_of_a_binding",
            "tests/unit/control/groups/test_upstream_connectors.py::test_acl_filtering",
        ),
    ),
    Mutant(
        "exclude list ignored",
        "docs/compatibility.md",
        "names/replication_policy.py",
        "        return self._exclude is None or self._exclude.fullmatch(name) is None\n",
        "        return True\n",
        ("tests/unit/names/test_replication_policy.py::test_filters_accept_what_java_accepts",),
    ),
    Mutant(
        "topics go round in a cycle",
        "docs/compatibility.md",
        "names/replication_policy.py",
        "            if source == target_alias:\n                return True\n",
        "            if source == target_alias:\n                return False\n",
        ("tests/unit/control/groups/test_upstream_connectors.py::test_no_cycles",),
    ),
    Mutant(
        "internal topics mirrored",
        "docs/compatibility.md",
        "names/replication_policy.py",
        "    if not wanted or policy.is_internal_topic(topic):\n",
        "    if not wanted:\n",
        ("tests/unit/names/test_replication_policy.py::test_topics_are_chosen_as_in_java",),
    ),
    # -- names at the target -----------------------------------------------------------------------
    Mutant(
        "a later rule of the map counts",
        "A remote topic holds the records of one source topic",
        "names/topics_map.py",
        "for index, (pattern, parts) in enumerate(self._rules):",
        "for index, (pattern, parts) in reversed(list(enumerate(self._rules))):",
        ("tests/unit/names/test_topics_map.py::test_rules_name_topics_as_java_would",),
    ),
    Mutant(
        "two topics are given one name",
        "A remote topic holds the records of one source topic",
        "control/topics/remote_names.py",
        "        elif remote in taken:\n",
        "        elif False:\n",
        (
            f"{_NAMES}::test_two_topics_of_one_name_are_named_and_one_of_them_is_mirrored",
            "tests/property/test_topic_maps.py::test_a_name_has_one_topic_whoever_looks_when",
        ),
    ),
    Mutant(
        "of two flows the last one to claim a name has it",
        "A remote topic holds the records of one source topic",
        "control/topics/remote_names.py",
        "if row.past or row.remote in first:",
        "if row.past:",
        (f"{_NAMES}::test_the_first_row_decides",),
    ),
    Mutant(
        "a topic that is left out is mirrored into the topic that has its name",
        "A remote topic holds the records of one source topic",
        "control/topics/sync.py",
        "grown = flow.mode is MirrorMode.MM2 and name not in observed.refused",
        "grown = flow.mode is MirrorMode.MM2",
        (f"{_NAMES}::test_a_topic_that_is_left_out_is_halted_though_its_remote_topic_exists",),
    ),
    Mutant(
        "readers of a topic that is left out may read the other one's copy",
        "A remote topic holds the records of one source topic",
        "control/topics/acl_sync.py",
        "and (mirrored is None or binding.name in mirrored)",
        "and (mirrored is None or binding.name)",
        (f"{_NAMES}::test_who_may_read_a_topic_that_is_left_out_does_not_get_the_others_copy",),
    ),
    Mutant(
        "loops of maps are not looked for",
        "A remote topic holds the records of one source topic",
        "config/mm2/overlaps.py",
        "            names = loop_example(ring)\n",
        "            names = loop_example(ring) and None\n",
        ("tests/unit/config/mm2/test_topics_map.py::test_a_loop_is_refused_with_an_example",),
    ),
    Mutant(
        "loops of flows with several policies are not looked for",
        "A remote topic holds the records of one source topic",
        "config/mm2/overlaps.py",
        "names = loop_example([*ring] * 2) and loop_example([*ring] * _ROUNDS)",
        "names = None",
        (
            "tests/unit/config/mm2/test_overlaps.py"
            "::test_policies_that_do_not_know_each_others_names_are_no_way_round",
        ),
    ),
    Mutant(
        "an example of a loop is believed though a flow leaves it out",
        "A remote topic holds the records of one source topic",
        "names/topic_ways.py",
        "if not wanted.accepts(names[-1]) or wanted.fault(names[-1]):",
        "if wanted.fault(names[-1]):",
        ("tests/property/test_topic_maps.py::test_a_loop_is_one_and_none_is_missed",),
    ),
    Mutant(
        "offset syncs are written for a mapped topic",
        "A consumer group finds the remote topic under its name",
        "data/write/offset_sync_writer.py",
        "        if not part.remote:\n",
        "        if True:\n",
        (f"{_SYNCS}::test_a_topic_that_a_map_has_named_has_runs_alone",),
    ),
    Mutant(
        "runs of a topic's copies are taken for one",
        "A consumer group finds the remote topic under its name",
        "control/groups/translation.py",
        "        named = row.source, row.remote\n",
        '        named = row.source, self._mapped(row.source.topic) or ""\n',
        (
            "tests/unit/control/groups/test_translation.py"
            "::test_the_copies_of_a_topic_under_several_names_are_told_apart",
        ),
    ),
    Mutant(
        "a renamed topic goes on where its old copy ended",
        "A consumer group finds the remote topic under its name",
        "control/positions/seeding.py",
        "            if remote is None\n",
        "            if True\n",
        (
            "tests/unit/control/topics/test_sync.py"
            "::test_a_topic_under_another_name_begins_like_a_new_one",
        ),
    ),
    Mutant(
        "the mirror's own positions become checkpoints",
        "docs/compatibility.md",
        "control/groups/checkpoints.py",
        "name for name in present if names.accepts(name) and not name.startswith(_POSITION_GROUPS)",
        "name for name in present if names.accepts(name)",
        (f"{_CHECKPOINTS}::test_wanted_groups",),
    ),
    Mutant(
        "MirrorMaker 2's position one record too far",
        "docs/compatibility.md",
        "internal_topics/connect_offsets.py",
        "encode_value(position - 1 if position > 0 else None)",
        "encode_value(position if position > 0 else None)",
        (
            "tests/unit/internal_topics/test_connect_offsets.py"
            "::test_position_is_one_past_the_last_replicated_offset",
        ),
    ),
    Mutant(
        "of two connectors' positions the one further on",
        "docs/compatibility.md",
        "internal_topics/connect_offsets.py",
        "min(named.values())",
        "max(named.values())",
        (
            "tests/unit/internal_topics/test_connect_offsets.py::test_of_several_connectors_none_is_overtaken",
        ),
    ),
    Mutant(
        "an offset sync later than MirrorMaker 2's",
        "docs/compatibility.md",
        "internal_topics/offset_syncs.py",
        "(self._last_sync_downstream + 1) >= self._lag_max\n",
        "(self._last_sync_downstream + 1) > self._lag_max\n",
        (
            "tests/unit/internal_topics/test_offset_syncs.py::test_partition_state_emits_as_java_does",
        ),
    ),
    # -- partitions that come and go -----------------------------------------------------------
    Mutant(
        "a slot begins what another epoch was planned for",
        "A topic that is new, grows or is gone",
        "data/read/slot_share.py",
        "        if not newest.base <= plan.version < newest.version:\n",
        "        if not plan.version < newest.version:\n",
        (f"{_ADDITIONS}::test_what_needs_a_new_epoch_is_not_begun",),
    ),
    Mutant(
        "what was planned is added once more",
        "A topic that is new, grows or is gone",
        "internal_topics/epochs/shares.py",
        "if added > version else (-1, 0)",
        "if added >= version else (-1, 0)",
        (_ONE_OWNER,),
    ),
    Mutant(
        "a partition that comes back is added to another slot than it was in",
        "A topic that is new, grows or is gone",
        "internal_topics/epochs/shares.py",
        "if not old or changed or added & self.gone:",
        "if not old or changed:",
        (f"{_SHARES}::test_a_new_epoch_begins_for_a_partition_that_comes_back", _ONE_OWNER),
    ),
    Mutant(
        "a compacted command is forgotten",
        "A topic that is new, grows or is gone",
        "internal_topics/epochs/shares.py",
        "        return command.base > version\n",
        "        return False\n",
        (f"{_SHARES}::test_which_commands_end_an_epoch_of_version_5",),
    ),
    Mutant(
        "an assignment whose writing failed is built upon",
        "A topic that is new, grows or is gone",
        "control/flows/publication.py",
        "        self._growth = None\n        document",
        "        document",
        (f"{_PUBLICATION}::test_after_a_failure_only_a_new_epoch_is_sure",),
    ),
    # -- partitions that move ------------------------------------------------------------------
    Mutant(
        "a partition has its new slot before the old one has released it",
        _MOVES,
        "internal_topics/epochs/shares.py",
        "        if orders is not None and steps and not orders.released:\n",
        "        if False:\n",
        (f"{_MOVE_DOCUMENTS}::test_a_partition_has_no_slot_while_it_moves",),
    ),
    Mutant(
        "an epoch counts moves that its plan has",
        _MOVES,
        "internal_topics/epochs/shares.py",
        "tuple(one for one in orders.steps if one[1] > version)",
        "orders.steps",
        (f"{_MOVE_DOCUMENTS}::test_an_epoch_counts_the_moves_that_are_newer_than_its_plan",),
    ),
    Mutant(
        "any slot can release a partition",
        _MOVES,
        "control/flows/moving.py",
        "    return (release.version, release.slot) == (order.version, order.moves[tp].before)",
        "    return True",
        (f"{_MOVING}::test_only_the_slot_that_had_a_partition_can_release_it",),
    ),
    Mutant(
        "a partition whose slot does not release it stays without one",
        _MOVES,
        "control/flows/moving.py",
        "        if missing:\n",
        "        if False:\n",
        (f"{_MOVING}::test_an_epoch_begins_if_a_slot_does_not_release_in_time",),
    ),
    Mutant(
        "a transaction is written again with what another slot has got",
        _MOVES,
        "data/coordination/fencing.py",
        "    if identity is None or gone:\n",
        "    if identity is None:\n",
        (
            "tests/unit/data/coordination/test_fencing.py"
            "::test_a_transaction_is_not_written_again_if_another_slot_has_a_partition_of_it",
        ),
    ),
    Mutant(
        "a task begins what another slot has",
        _MOVES,
        "data/read/slot_share.py",
        "            kept = tuple(p for p in kept if share.owned.get(p) == 0)\n",
        "            pass\n",
        (f"{_SLOT_SHARE}::test_a_partition_that_another_slot_has_is_not_begun",),
    ),
    Mutant(
        "an attempt releases what one that fenced it may write",
        _MOVES,
        "data/read/slot_start.py",
        " or watch.assignment is ordered:\n",
        " or True:\n",
        (f"{_SLOT_SHARE}::test_an_order_counts_if_it_was_there_before_the_fence",),
    ),
    Mutant(
        "exactly-once releases without a commit after the order",
        _MOVES,
        "data/write/sink_task.py",
        "            lane.marked = None\n",
        "            pass\n",
        (f"{_RELEASES}::test_a_partition_without_news_is_committed_once_more",),
    ),
    Mutant(
        "at-least-once releases what is in flight",
        _MOVES,
        "data/write/at_least_once.py",
        "        written = [lane for lane in self._task.leaving if not lane.queue]\n",
        "        written = list(self._task.leaving)\n",
        (f"{_RELEASES}::test_a_partition_is_released_once_it_is_written_and_committed",),
    ),
    Mutant(
        "a partition that was left begins again",
        "A topic that is new, grows or is gone",
        "data/read/slot_reader.py",
        "            if tp not in self._by_source:\n                continue  # the slot",
        "            if False:\n                continue  # the slot",
        (f"{_ADDITIONS}::test_a_partition_that_is_gone_is_fetched_no_more",),
    ),
    Mutant(
        "a slot that may have lost the flow begins partitions",
        "A topic that is new, grows or is gone",
        "data/read/slot_reader.py",
        "        if self._cut_off():\n            return\n        for begun",
        "        for begun",
        (f"{_ADDITIONS}::test_nothing_begins_while_another_process_may_own_the_flow",),
    ),
)
