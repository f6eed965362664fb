"""``sparkmirror drain``."""

from __future__ import annotations

from sparkmirror.cli.shared.settings_options import Files, Flows, with_files
from sparkmirror.cli.verbs.control_commands import Named, Wait, give_orders
from sparkmirror.internal_topics.commands import CommandKind

__all__ = ["drain"]


@with_files
def drain(files: Files, named: Named = None, flows: Flows = None, wait_s: Wait = 30.0) -> None:
    """End the flows of FILE in order: what was read is written, positions are committed.

    A mirror whose flows have all been drained ends with exit code 0; others go on with the rest.
    A drained flow is mirrored again by the next run, or by a process of the file that stands by.

    Exit codes: 0 done, 1 not done in time or nothing ran, 2 wrong usage or file, 3 a cluster does
    not answer.
    """
    give_orders(CommandKind.DRAIN, files, [*(named or ()), *(flows or ())], wait_s=wait_s)
