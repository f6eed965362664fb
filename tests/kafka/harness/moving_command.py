"""``python moving_command.py ARGUMENTS``: sparkmirror, whose driver moves partitions all the time.

Every few seconds, all partitions but the first of each slot get the other one of two slots. All
else is as with the installed command.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sparkmirror.cli.main import main
from sparkmirror.control import flow_jobs
from sparkmirror.control.flows import dealing, loads
from sparkmirror.internal_topics.deals.dealing import Deal, Move
from sparkmirror.internal_topics.deals.load import Load
from sparkmirror.model import TopicPartition

SLOTS = 2
REASON = "it is moved all the time"
_make_deal = dealing.make_deal


def _swapped(
    weighed: Mapping[TopicPartition, Load],
    slots_max: int,
    before: Mapping[TopicPartition, int] | None = None,
    **options: Any,
) -> Deal:
    if before is None:
        return _make_deal(weighed, slots_max, before, **options)
    slots: list[list[TopicPartition]] = [[] for _ in range(SLOTS)]
    moves = []
    for tp in sorted(weighed):
        home = before[tp]
        # Those with the lowest numbers stay, one in each slot.
        after = home if tp.partition < SLOTS else 1 - home
        slots[after].append(tp)
        if after != home:
            moves.append(Move(tp, home, after, REASON))
    return Deal(tuple(map(tuple, slots)), frozenset(), tuple(moves))


if __name__ == "__main__":
    dealing.make_deal = _swapped
    dealing._INTERVAL_S = dealing._MOVED_INTERVAL_S = 2.0
    loads._KNOWN_S = 1.0
    flow_jobs._DEAL_INTERVAL_S = 0.5
    sys.argv[0] = "sparkmirror"
    sys.exit(main())
