"""The mutants: one small fault each, the promise that it breaks, and the tests that must notice.

A fault is what a slip in a change could bring about. Where several tests would notice it, the one
is named that shows the promise, and costs least. There is a module for each trade.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.table.brokers import BROKERS
from tests.mutants.table.exactly_once import EXACTLY_ONCE
from tests.mutants.table.groups import GROUPS
from tests.mutants.table.losses import LOSSES
from tests.mutants.table.mirrormaker_1 import MIRRORMAKER_1
from tests.mutants.table.names import NAMES
from tests.mutants.table.records import RECORDS
from tests.mutants.table.transforms import TRANSFORMS

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = (
    *RECORDS,
    *GROUPS,
    *LOSSES,
    *MIRRORMAKER_1,
    *BROKERS,
    *EXACTLY_ONCE,
    *NAMES,
    *TRANSFORMS,
)
