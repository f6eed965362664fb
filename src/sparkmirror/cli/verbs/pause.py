"""``sparkmirror pause``."""

from __future__ import annotations

from sparkmirror.cli.shared.settings_options import Files, Flows, with_files
from sparkmirror.cli.verbs.control_commands import Named, Wait, give_orders
from sparkmirror.internal_topics.commands import CommandKind

__all__ = ["pause"]


@with_files
def pause(files: Files, named: Named = None, flows: Flows = None, wait_s: Wait = 15.0) -> None:
    """Stop mirroring the flows of FILE for a while: nothing is fetched, positions stay.

    What was fetched already is still written. A pause outlives the run: a mirror that is started
    later stands still as well, until `sparkmirror resume`. It works from any machine that reaches
    the target clusters.

    Exit codes: 0 done, 1 not done in time, 2 wrong usage or file, 3 a cluster does not answer.
    """
    give_orders(CommandKind.PAUSE, files, [*(named or ()), *(flows or ())], wait_s=wait_s)
