"""``sparkmirror resume``."""

from __future__ import annotations

from sparkmirror.cli.shared.settings_options import Files, Flows, with_files
from sparkmirror.cli.verbs.control_commands import Named, Wait, give_orders
from sparkmirror.internal_topics.commands import CommandKind

__all__ = ["resume"]


@with_files
def resume(files: Files, named: Named = None, flows: Flows = None, wait_s: Wait = 15.0) -> None:
    """Go on with paused flows of FILE, from where they stand.

    Exit codes: 0 done, 1 not done in time, 2 wrong usage or file, 3 a cluster does not answer.
    """
    give_orders(CommandKind.RESUME, files, [*(named or ()), *(flows or ())], wait_s=wait_s)
