"""Consumer groups and their offsets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["GROUPS"]

_CHECKPOINTS = "tests/unit/control/groups/test_checkpoints.py"
_MEMBERS = "tests/unit/wire/admin/test_members.py"
_PLAIN = "tests/unit/data/write/test_slot_sink.py"
_SYNCS = "tests/unit/data/write/test_offset_sync_writer.py"

GROUPS: tuple[Mutant, ...] = (
    Mutant(
        "checkpoint one ahead",
        "A consumer group that moves",
        "internal_topics/run_map.py",
        "            place = run.target + source - run.source\n",
        "            place = run.target + source - run.source + 1\n",
        (
            "tests/property/test_offset_map.py::test_forgetting_repeats_but_never_skips",
            "tests/property/test_offset_map.py::test_a_map_that_forgets_nothing_is_exact",
        ),
    ),
    Mutant(
        "an offset between two syncs guessed",
        "A consumer group that moves",
        "internal_topics/offset_syncs.py",
        "return sync.downstream + (upstream > sync.upstream)",
        "return sync.downstream + upstream - sync.upstream",
        (
            "tests/unit/internal_topics/test_offset_syncs.py::test_the_store_keeps_and_translates_as_java_does",
        ),
    ),
    Mutant(
        "offset sync published before the commit",
        "A consumer group that moves",
        "data/write/at_least_once.py",
        "        self._commits.begin(offsets, epochs)\n",
        "        self._commits.begin(offsets, epochs)\n"
        "        if syncs is not None:\n            syncs.publish(self._covered)\n",
        (f"{_PLAIN}::test_offset_syncs_follow_the_commit_of_what_they_tell_of",),
    ),
    Mutant(
        "offset syncs published that came after the commit had begun",
        "A consumer group that moves",
        "data/write/at_least_once.py",
        "                self._task.syncs.publish(self._covered)\n",
        "                self._task.syncs.publish()\n",
        (f"{_PLAIN}::test_a_coordinator_that_hangs_keeps_no_record_waiting",),
    ),
    Mutant(
        "runs of a topic made anew go on from the old one's",
        "A consumer group that moves",
        "data/write/offset_sync_writer.py",
        "(part.topic_id, part.target_id) != (topic_id, target_id):\n",
        "part.target_id != target_id:\n",
        (f"{_SYNCS}::test_a_topic_made_anew_begins_runs_of_its_own",),
    ),
    Mutant(
        "a group's offset goes back on the target",
        "A consumer group that moves",
        "control/groups/group_offsets.py",
        "present[remote].offset < checkpoint.downstream",
        "present[remote].offset != checkpoint.downstream",
        (f"{_CHECKPOINTS}::test_group_offsets_never_go_back",),
    ),
    Mutant(
        "offsets of a group with members written",
        "A consumer group that moves",
        "wire/admin/groups.py",
        'IDLE_STATES = frozenset({"Empty", "Dead"})',
        'IDLE_STATES = frozenset({"Empty", "Dead", "Stable"})',
        (f"{_CHECKPOINTS}::test_only_groups_without_members_are_written",),
    ),
    Mutant(
        "streams groups overlooked",
        "A consumer group that moves",
        "wire/admin/groups.py",
        "if consumes or kind == _STREAMS:",
        "if consumes:",
        (f"{_MEMBERS}::test_groups_of_consumers_are_listed_whatever_their_protocol",),
    ),
    Mutant(
        "a group whose members are hidden taken for one without",
        "A consumer group that moves",
        "wire/admin/members.py",
        'except _TopicsHidden:\n        return (GroupMember("", ""),)',
        "except _TopicsHidden:\n        return ()",
        (f"{_MEMBERS}::test_hidden_topics_hide_the_members_but_not_that_there_are_some",),
    ),
    Mutant(
        "a checkpoint for a target offset that only went back",
        "A consumer group that moves",
        "control/groups/checkpoints.py",
        "    advanced_downstream = new.downstream > last.downstream\n",
        "    advanced_downstream = new.downstream != last.downstream\n",
        (f"{_CHECKPOINTS}::test_checkpoints_go_forward_unless_the_group_went_back",),
    ),
)
