"""What ``pause``, ``resume`` and ``drain`` share: a command per flow, and its effect awaited."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from sparkmirror.cli.connections import Connections
from sparkmirror.cli.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.files import Files, choose_flows, load_settings
from sparkmirror.control.status import FlowState, FlowStatus, observe_status
from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.model import FlowSettings
from sparkmirror.text import say
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.control_topic import ControlTopicWriter
from sparkmirror.wire.signals import Command, CommandKind, channel, control_topic

__all__ = ["Named", "Wait", "give_orders"]

_LOOK_S = 0.5

Named = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FLOW]...",
        help='Flows such as "A->B"; all of the file when none is named.',
        show_default=False,
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        help="Wait until it is done, at most so long; 0 does not wait.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Order:
    flow: FlowSettings
    target: Cluster


def give_orders(kind: CommandKind, files: Files, flows: Sequence[str], *, wait_s: float) -> None:
    """Write the command for each flow and say what came of it; ends with `typer.Exit`."""
    if files.consumer_config and files.file is not None and "->" in files.file.name:
        # Where options name the files, the first argument is a flow.
        flows = [str(files.file), *flows]
        files = replace(files, file=None)
    settings = load_settings(files, listed=False)
    failed = False
    chosen = choose_flows(settings, flows)
    with Connections() as connections:
        connections.expect(flow.target_admin for flow in chosen)
        for flow in chosen:
            try:
                order = _Order(flow, connections.cluster(flow.target_admin))
                said, good = _give(kind, order, wait_s)
            except MirrorError as error:
                show_error(error)
                raise typer.Exit(EXIT_START_FAILED) from error
            failed |= not good
            say(f"{flow.name}: {said}")
    raise typer.Exit(1 if failed else 0)


def _give(kind: CommandKind, order: _Order, wait_s: float) -> tuple[str, bool]:
    """(what to say, whether all is well). Raises `MirrorError`."""
    flow, target = order.flow, order.target
    topic = control_topic(flow)
    if topic not in target.topics([topic]):
        raise TopicError(
            f"there is no {topic}: this flow never ran here.",
            where=f"cluster {target.alias}",
            do="Check the file, or start the mirror first.",
        )
    status = observe_status(target, flow, _now_ms())
    if kind is CommandKind.DRAIN and not status.state.alive:
        return "nothing to drain: it is not running", False
    runs = frozenset(status.runs)
    ControlTopicWriter(target, topic).command(
        # A pause is for every process of a MirrorMaker 1 group and outlives runs.
        *(
            [Command(flow.name, kind, status.run_id, _now_ms())]
            if kind.pauses
            else [Command(channel(flow, run), kind, run, _now_ms()) for run in sorted(runs)]
        )
    )
    return _await(kind, order, wait_s, runs)


def _await(
    kind: CommandKind, order: _Order, wait_s: float, runs: frozenset[str]
) -> tuple[str, bool]:
    deadline_s = time.monotonic() + wait_s
    while True:
        status = observe_status(order.target, order.flow, _now_ms())
        done = _done(kind, status, runs)
        if done:
            return done, True
        if time.monotonic() >= deadline_s:
            return f"asked to {kind.value}, now {status.state.value}", wait_s == 0
        time.sleep(_LOOK_S)


def _done(kind: CommandKind, status: FlowStatus, runs: frozenset[str]) -> str:
    if kind is CommandKind.DRAIN:
        return "" if runs & set(status.runs) else "drained"
    state = status.state
    if not state.alive:
        return f"{kind.value}d for the next run; nothing runs at present"
    if kind is CommandKind.PAUSE:
        return "paused" if state is FlowState.PAUSED else ""
    return "resumed" if state is not FlowState.PAUSED else ""


def _now_ms() -> int:
    return int(time.time() * 1_000)
