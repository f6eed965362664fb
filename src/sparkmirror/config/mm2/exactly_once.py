"""Exactly-once in a MirrorMaker 2 file: whether a flow uses it, and settings that contradict it."""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader, shown
from sparkmirror.config.table.settings import Scope
from sparkmirror.errors import ConfigError, Defect
from sparkmirror.settings import EXACT_SLOTS_MAX, ProduceSettings

SECRET_CHARS_MIN = 32
"""Minimum length of ``sparkmirror.control.secret``: 16 bytes as hexadecimal digits."""
_SECRET = "sparkmirror.control.secret"  # noqa: S105 (a name)

_SWITCH = "exactly.once.source.support"


def wants_exactly_once(
    clusters: tuple[str, str],
    *,
    worker: Mapping[str, Entry],
    connector: Mapping[str, Entry],
    consumer: Mapping[str, Entry],
    producer: Mapping[str, Entry],
    produce: ProduceSettings,
    forced: bool,
) -> bool:
    """Whether the flow between ``clusters`` (source, target) is exactly-once.

    ``forced``: the command line enables it. The value ``preparing`` does not enable it: it is for
    workers that already run. Raises ConfigError if other settings contradict exactly-once.
    """
    source, target = clusters
    switched_on = forced or ValueReader(worker, Scope.WORKER).text(_SWITCH) == "enabled"
    required = connector.get("exactly.once.support")
    if required is not None and required.value.strip().lower() == "required" and not switched_on:
        raise ConfigError(
            f"{required.key}={shown(required, required.value.strip())}, but exactly-once is not "
            "enabled for the target.",
            where=required.where,
            do=f"Add {target}.{_SWITCH}=enabled, or remove the key.",
        )
    if not switched_on:
        return False
    isolation = consumer.get("isolation.level")
    if isolation is not None and isolation.value.strip().lower() == "read_uncommitted":
        raise ConfigError(
            f"{isolation.key}=read_uncommitted contradicts exactly-once: it would mirror records "
            "of aborted transactions, and of open ones before their outcome is known.",
            where=isolation.where,
            do=f"Set {source}.consumer.isolation.level=read_committed, or remove the key.",
        )
    if not produce.enable_idempotence:
        raise _not_idempotent(producer, target)
    return True


def exact_slots(flow: ValueReader, *, exact: bool) -> int:
    """``tasks.max`` of ``flow``. Raises ConfigError if an exactly-once flow has too many."""
    slots = flow.integer("tasks.max")
    if exact and slots > EXACT_SLOTS_MAX:
        given = flow.entry("tasks.max")
        if given is None:
            raise Defect("the default of tasks.max is too much")
        raise ConfigError(
            f"{given.key}={slots} is too many for exactly-once: every start fences the "
            f"transactional ids of all slots, at most {EXACT_SLOTS_MAX}.",
            where=given.where,
            do=f"Set tasks.max to {EXACT_SLOTS_MAX} or less, or leave exactly-once out.",
        )
    return slots


def control_secret(own: ValueReader) -> str:
    """The secret that signs claims, empty for none. Raises ConfigError if it is too short."""
    secret = own.text(_SECRET).strip()
    given = own.entry(_SECRET)
    if secret and given is not None and len(secret) < SECRET_CHARS_MIN:
        raise ConfigError(
            f"{given.key} has {len(secret)} characters, so readers of the control topic could "
            f"guess it; it needs at least {SECRET_CHARS_MIN}.",
            where=given.where,
            do="Create one with openssl rand -hex 32, the same for all mirrors of this file.",
        )
    return secret


def transaction_times_ms(
    own: ValueReader, producer: ValueReader, target: str, *, exact: bool
) -> tuple[int, int]:
    """(milliseconds that a transaction lasts, milliseconds until the target aborts it).

    ``own`` reads sparkmirror's own keys. Raises ConfigError if an exactly-once flow's transactions
    would all be aborted.
    """
    interval_key, timeout_key = "sparkmirror.transaction.interval.ms", "transaction.timeout.ms"
    interval_ms, timeout_ms = own.integer(interval_key), producer.integer(timeout_key)
    if exact and interval_ms >= timeout_ms:
        interval, timeout = own.entry(interval_key), producer.entry(timeout_key)
        if interval is None:
            raise Defect("a setting without a default")
        if timeout is None:
            raise Defect("a setting without a default")
        given = timeout if interval.origin.is_default else interval
        raise ConfigError(
            f"{interval.key}={interval_ms} contradicts {timeout.key}={timeout_ms}: the target "
            "would abort each transaction before it ends.",
            where=given.where,
            do=f"Set {interval_key} below {target}.producer.{timeout_key}.",
        )
    return interval_ms, timeout_ms


def _not_idempotent(producer: Mapping[str, Entry], target: str) -> ConfigError:
    given = [
        producer[key]
        for key in ("enable.idempotence", "acks", "max.in.flight.requests.per.connection")
        if key in producer and not producer[key].origin.is_default
    ]
    told = " and ".join(f"{entry.key}={shown(entry, entry.value.strip())}" for entry in given)
    return ConfigError(
        f"{told or 'the producer'} contradicts exactly-once, which needs enable.idempotence=true, "
        "acks=all and at most 5 requests in flight.",
        where=given[0].where if given else f"cluster {target}",
        do="Remove it.",
    )
