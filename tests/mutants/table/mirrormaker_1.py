"""MirrorMaker 1's files."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MIRRORMAKER_1"]

_MEMBER = "tests/unit/control/mm1/test_membership.py"
_PLAIN = "tests/unit/data/write/test_slot_sink.py"

MIRRORMAKER_1: tuple[Mutant, ...] = (
    Mutant(
        "a member writes on after the group has given it up",
        "MirrorMaker 1: one member",
        "data/write/position_commits.py",
        "        self.fenced = Halt(error.code, str(error), retriable=True)\n",
        "        self._refused_at = now\n",
        (f"{_PLAIN}::test_who_the_group_has_given_up_commits_and_writes_no_more",),
    ),
    Mutant(
        "partitions given up before they are drained",
        "MirrorMaker 1: one member",
        "control/mm1/membership.py",
        "        return self._planned(version)\n",
        "        return True\n",
        (f"{_MEMBER}::test_an_eager_member_drains_all_before_it_joins_again",),
    ),
    Mutant(
        "a cooperative member does not wait for what others get",
        "MirrorMaker 1: one member",
        "control/mm1/membership.py",
        "            if not self._planned(self._publish()):\n                return False\n",
        "            self._publish()\n",
        (
            f"{_MEMBER}::"
            "test_a_cooperative_member_drains_what_others_get_before_it_joins_without_it",
        ),
    ),
    Mutant(
        "records of a partition not in the source's order",
        "MirrorMaker 1: equal keys",
        "records/partitioner.py",
        '    order = np.argsort(chosen, kind="stable")\n',
        '    order = np.argsort(chosen[::-1], kind="stable")[::-1]\n',
        (
            "tests/unit/records/test_partitioner.py::test_every_record_goes_to_its_keys_partition_in_order",
        ),
    ),
    Mutant(
        "another hash of the key",
        "MirrorMaker 1: equal keys",
        "records/murmur2.py",
        "    hashes ^= hashes >> _15\n",
        "",
        ("tests/unit/records/test_partitioner.py::test_murmur2_of_kafkas_own_test",),
    ),
)
