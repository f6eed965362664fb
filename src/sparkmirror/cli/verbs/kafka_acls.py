"""Permissions as ``kafka-acls.sh`` command lines, and as a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.tables import UNLIMITED, Columns, Report, Table
from sparkmirror.wire.cluster.acl_advice import kafka_acls_command

if TYPE_CHECKING:
    from sparkmirror.control.permissions.acl_lock import LockPlan
    from sparkmirror.control.permissions.needed import Permission
    from sparkmirror.settings import ClusterClient, FlowSettings
    from sparkmirror.wire.cluster.views import AclBinding

_COLUMNS: Columns = {
    "CLUSTER": "client.alias",
    "PRINCIPAL": "binding.principal",
    "RESOURCE": "binding.resource_type",
    "NAME": "binding.name",
    "PATTERN": "binding.pattern",
    "OPERATION": "binding.operation",
    "WHY": "why",
}
_OLD_BROKERS = "Brokers before 2.8 also need --operation IdempotentWrite --cluster for the writer."


def needed_text(permissions: Sequence[Permission], command_config: str) -> Iterable[str]:
    """The commands that grant ``permissions``, by cluster, with the reason for each."""
    clients = {one.client.alias: one.client for one in reversed(permissions)}
    for alias in dict.fromkeys(one.client.alias for one in permissions):
        mine = [one for one in permissions if one.client.alias == alias]
        yield f"# cluster {alias}"
        told = ""
        for why, bindings in _by_reason(mine):
            if why != told:
                yield f"# {why}"
            told = why
            yield from kafka_acls_commands(bindings, clients[alias], command_config)
        if any(one.why == "write the records" for one in mine):
            yield f"# {_OLD_BROKERS}"
        yield ""


def _by_reason(permissions: Sequence[Permission]) -> Iterable[tuple[str, list[AclBinding]]]:
    """(reasons, bindings) for each resource and principal."""
    groups: dict[tuple[str, ...], list[Permission]] = {}
    for one in permissions:
        groups.setdefault(_resource(one.binding), []).append(one)
    for group in groups.values():
        yield "; ".join(dict.fromkeys(one.why for one in group)), [one.binding for one in group]


def _resource(binding: AclBinding) -> tuple[str, ...]:
    return (
        binding.resource_type, binding.name, binding.pattern, binding.principal, binding.host,
        binding.permission,
    )  # fmt: skip


def kafka_acls_commands(
    bindings: Iterable[AclBinding], client: ClusterClient, command_config: str, verb: str = "--add"
) -> list[str]:
    """``kafka-acls.sh`` command lines, one per resource and principal, quoted for a shell."""
    groups: dict[tuple[str, ...], list[AclBinding]] = {}
    for binding in bindings:
        groups.setdefault(_resource(binding), []).append(binding)
    return [kafka_acls_command(group, client, command_config, verb) for group in groups.values()]


def lock_text(plan: LockPlan, flow: FlowSettings, command_config: str) -> Iterable[str]:
    """The commands of a lock, or the commands that must precede it."""

    def commands(bindings: Iterable[AclBinding], verb: str = "--add") -> list[str]:
        return kafka_acls_commands(bindings, flow.target_admin, command_config, verb)

    everybodys = [one for one in plan.blocking if one.principal == "User:*"]
    wide = [one for one in plan.blocking if one.principal != "User:*"]
    if everybodys:
        yield "# These ACLs let everybody write to remote topics, and cover other topics too. First"
        yield "# give those who need it their own permissions, then remove these:"
        yield from commands(everybodys, "--remove")
    if wide:
        yield "# These ACLs let others write to remote topics, and a denial would also hit topics"
        yield f"# that {flow.name} does not mirror. First give those who need it permissions on"
        yield "# single topics, then remove these:"
        yield from commands(wide, "--remove")
    if plan.blocking:
        return
    if not (plan.create or plan.remove):
        yield f"# nothing to do: only the mirror writes to the remote topics of {flow.name}"
    allowed = [one for one in plan.create if one.permission == "ALLOW"]
    denied = [one for one in plan.create if one.permission == "DENY"]
    for title, taken, lines in (
        ("permissions of the mirror and of readers", (), commands(allowed)),
        ("nobody else may write", denied, commands(denied)),
        (
            "remove permissions that let everybody write",
            plan.remove,
            commands(plan.remove, "--remove"),
        ),
    ):
        if lines:
            yield f"# {title}"
        if flow.topics.exclude and any(one.pattern == "PREFIXED" for one in taken):
            yield "# (on prefixes: this also hits topics that topics.exclude leaves out)"
        yield from lines
    if not plan.readable:
        yield "# Then only the mirror and super users may read these topics: see --reader."


def report(permissions: Sequence[Permission]) -> Report:
    """One line per permission; as JSON, a list."""
    rows = [
        {"cluster": one.client.alias, **asdict(one.binding), "why": one.why} for one in permissions
    ]
    return Report(rows, [Table(_COLUMNS, permissions, gap=1, most=UNLIMITED)])
