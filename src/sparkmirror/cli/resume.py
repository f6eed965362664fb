"""``sparkmirror resume``."""

from __future__ import annotations

from sparkmirror.cli.files import File, ProducerFile
from sparkmirror.cli.orders import Flows, Wait, give_orders
from sparkmirror.wire.signals import CommandKind

__all__ = ["resume"]


def resume(
    file: File, flows: Flows = None, producer: ProducerFile = None, wait_s: Wait = 15.0
) -> None:
    """Go on with paused flows of FILE, from where they stand.

    Exit codes: 0 done, 1 not done in time, 2 wrong usage or file, 3 a cluster does not answer.
    """
    give_orders(CommandKind.RESUME, file, flows or (), producer, wait_s=wait_s)
