"""``sparkmirror drain``."""

from __future__ import annotations

from sparkmirror.cli.files import File, ProducerFile
from sparkmirror.cli.orders import Flows, Wait, give_orders
from sparkmirror.wire.signals import CommandKind

__all__ = ["drain"]


def drain(
    file: File, flows: Flows = None, producer: ProducerFile = None, wait_s: Wait = 30.0
) -> None:
    """End the flows of FILE in order: what was read is written, positions are committed.

    A mirror whose flows have all been drained ends with exit code 0; others go on with the rest.
    A drained flow is mirrored again by the next run.

    Exit codes: 0 done, 1 not done in time or nothing ran, 2 wrong usage or file, 3 a cluster does
    not answer.
    """
    give_orders(CommandKind.DRAIN, file, flows or (), producer, wait_s=wait_s)
