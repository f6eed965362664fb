"""Which slot mirrors which partitions: pure functions, and the plan that a task receives."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from sparkmirror.data.coordination.sealed_options import seal, unseal
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.deals.dealing import make_deal
from sparkmirror.internal_topics.deals.load import Load
from sparkmirror.internal_topics.deals.record import DealRecord
from sparkmirror.internal_topics.epochs.record import EpochRecord
from sparkmirror.internal_topics.throttles import Limits
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings, Member, TopicRule
from sparkmirror.transform_settings import RegistrySettings, TransformSettings

__all__ = [
    "SlotPlan",
    "assign_dealt",
    "assign_round_robin",
    "decode_flow",
    "encode_flow",
    "plan_slots",
]

# A slot that has not begun after this time is on a host with another clock.
_BEGIN_S = 60.0
_BRIEF_S = 300.0
_SECRET = "control.secret"  # noqa: S105 (a name)
_ARGS = "handler.args"


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """One slot of one epoch: the input of the task's ``read``.

    ``ends``: exclusive source end offsets of a bounded run, None in continuous mode.
    ``control_offset``: offset in the control topic's commands from which the slot reads; the
    planner has read everything before it. ``paused``: whether the flow was paused there.
    ``version``: the assignment's. ``member``: the group membership that belongs to it.
    ``planned_at_s``: when the epoch was planned, epoch seconds by the planner's clock.
    ``claim_term``: the term of the run's claim. ``rehearsal``: the slot of a standby, which has no
    work. ``slots``: how many the epoch has. ``limits``: the newest before ``control_offset``, None
    for none. ``brief``: the epoch ends soon, because something could not be checked before it.
    ``record``: that of an exactly-once flow's epoch.
    """

    slot: int
    epoch: int
    run_id: str
    partitions: tuple[SourcePartition, ...]
    ends: tuple[tuple[str, int, int], ...] | None
    control_offset: int
    version: int = 0
    member: Member | None = None
    paused: bool = False
    planned_at_s: float = 0.0
    claim_term: int = 0
    rehearsal: bool = False
    slots: int = 1
    limits: Limits | None = None
    brief: bool = False
    record: EpochRecord | None = None

    def end_offsets(self) -> dict[TopicPartition, int] | None:
        """``ends`` by partition; a partition without an end is not bounded."""
        if self.ends is None:
            return None
        return {TopicPartition(topic, index): end for topic, index, end in self.ends}

    def time_left_s(self, epoch_s: float, attempt: int, now_s: float) -> float:
        """How long attempt number ``attempt`` of the task (0: the first) may stream.

        All slots of an epoch end at the same time, because those that are done wait for the others.
        If the clock of a host cannot be right, its slots have the whole epoch. A first attempt
        begins soon after the plan, and has at least half of the epoch, however long it took.
        """
        if self.brief:
            epoch_s = min(epoch_s, _BRIEF_S)
        spent_s = now_s - self.planned_at_s
        if not 0 <= spent_s <= (2 * epoch_s if attempt else _BEGIN_S):
            return epoch_s
        return max(0.0 if attempt else epoch_s / 2, epoch_s - spent_s)


def assign_round_robin(
    partitions: Sequence[SourcePartition], slots_max: int
) -> list[tuple[SourcePartition, ...]]:
    """Assign partitions round-robin in order, as MirrorMaker 2 assigns them to tasks.

    Returns min(``slots_max``, number of partitions) tuples; none is empty.
    """
    ordered = sorted(partitions)
    count = min(max(1, slots_max), len(ordered))
    return [tuple(ordered[index::count]) for index in range(count)]


def assign_dealt(
    partitions: Sequence[SourcePartition], slots_max: int, deal: DealRecord
) -> list[tuple[SourcePartition, ...]]:
    """Assign partitions as ``deal`` says; those that it does not know go where the load is least.

    Returns as many tuples as `assign_round_robin`; none is empty.
    """
    by_source = {p.source: p for p in partitions}
    loads = {tp: Load() for tp in by_source}
    home: dict[TopicPartition, int] = {}
    for slot, share in enumerate(deal.deal.slots):
        kept = [tp for tp in share if tp in by_source]
        home.update((tp, slot) for tp in kept)
        # The record has weights of slots only. Those of their partitions add up to them.
        loads.update((tp, Load(deal.weights[slot] / len(share))) for tp in kept)
    dealt = make_deal(loads, slots_max, home, apart_before=deal.deal.apart, rebalance=False)
    return [tuple(by_source[tp] for tp in share) for share in dealt.slots]


def plan_slots(
    partitions: Sequence[SourcePartition],
    *,
    slots_max: int,
    epoch: int,
    run_id: str,
    ends: Mapping[TopicPartition, int] | None,
    control_offset: int,
    version: int = 0,
    member: Member | None = None,
    paused: bool = False,
    planned_at_s: float = 0.0,
    claim_term: int = 0,
    limits: Limits | None = None,
    deal: DealRecord | None = None,
) -> list[SlotPlan]:
    """The slots of one epoch. In a bounded run, partitions without an end are left out.

    ``deal``: the newest one of the run (`control.flows.dealing`); None for none.
    """
    wanted = [p for p in partitions if ends is None or p.source in ends]
    if deal is None:
        shares = assign_round_robin(wanted, slots_max)
    else:
        shares = assign_dealt(wanted, slots_max, deal)
    return [
        SlotPlan(
            slot=index,
            epoch=epoch,
            run_id=run_id,
            partitions=share,
            ends=None
            if ends is None
            else tuple((p.topic, p.partition, ends[p.source]) for p in share),
            control_offset=control_offset,
            version=version,
            member=member,
            paused=paused,
            planned_at_s=planned_at_s,
            claim_term=claim_term,
            slots=len(shares),
            limits=limits,
        )
        for index, share in enumerate(shares)
    ]


# -- settings as a Spark option ------------------------------------------------------------------


def encode_flow(flow: FlowSettings, key: str = "") -> str:
    """``flow`` as JSON for a Spark option.

    ``key`` seals its secrets, client properties and texts for handlers. Spark shows options in
    plans, logs and its UI, so secrets must not be readable there. Without a key they are left out.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, ClusterClient):
            sealed = seal(value.properties, key) if key else ""
            rest = plain_fields(dataclasses.replace(value, properties={}))
            return {**rest, "properties": sealed}
        if isinstance(value, FlowSettings):
            secret = {_SECRET: value.control_secret} if value.control_secret else {}
            sealed = seal(secret, key) if key else ""
            # No worker needs what SQL functions have: Spark has it (`data.transform.functions`).
            bare = dataclasses.replace(
                value, control_secret="", hash_salt="", registry=RegistrySettings()
            )
            rest = plain_fields(bare)
            return {**rest, "control_secret": sealed}
        if isinstance(value, TransformSettings):
            # The driver reads the tables. Options of Spark's reader may hold secrets. So may the
            # text for a handler: a key with which it encrypts a field.
            args = {} if value.handler_args is None else {_ARGS: value.handler_args}
            rest = plain_fields(dataclasses.replace(value, tables=(), handler_args=None))
            return {**rest, "handler_args": seal(args, key) if key else ""}
        return plain_fields(value)

    def plain_fields(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {
                field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
            }
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return value

    return json.dumps(plain(flow), separators=(",", ":"))


def decode_flow(text: str) -> FlowSettings:
    """The flow in an option written by `encode_flow`."""
    flow: FlowSettings = _rebuild(FlowSettings, json.loads(text))
    return flow


def _rebuild(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_rebuild(get_args(kind)[0], item) for item in value)
    kind = next((part for part in get_args(kind) if dataclasses.is_dataclass(part)), kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        if kind is ClusterClient:
            value = {**value, "properties": unseal(value["properties"])}
        if kind is FlowSettings:
            secret = unseal(value["control_secret"]).get(_SECRET, "")
            value = {**value, "control_secret": secret}
        if kind is TransformSettings:
            value = {**value, "handler_args": unseal(value["handler_args"]).get(_ARGS)}
        return kind(**{name: _rebuild(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is TopicRule:
        return TopicRule(*value)
    return value
