"""``sparkmirror acls``: the permissions a mirror needs, and a write lock for remote topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared import tables
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Files,
    Mm2File,
    SameFlow,
    TopicFiles,
    load_settings,
    one_flow,
    with_files,
)
from sparkmirror.cli.verbs.kafka_acls import lock_text, needed_text, report
from sparkmirror.errors import ClusterError, ConfigError, MirrorError
from sparkmirror.text import echo

if TYPE_CHECKING:
    from sparkmirror.control.permissions.acl_lock import LockPlan
    from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
    from sparkmirror.wire.admin.cluster import Cluster

acls = typer.Typer(
    help="Permissions that a mirror's principals need, and a write lock for remote topics.",
    no_args_is_help=True,
)


class Format(StrEnum):
    """How permissions are printed."""

    COMMANDS = "commands"
    TABLE = "table"
    JSON = "json"


Principals = Annotated[
    list[str] | None,
    typer.Option(
        "--principal",
        metavar="[ALIAS=]User:NAME",
        help="The mirror's principal, on one cluster or on all. Default: the user name of PLAIN"
        " and SCRAM logins, User:ANONYMOUS without a login.",
        show_default=False,
    ),
]
CommandConfig = Annotated[
    str,
    typer.Option(metavar="FILE", help="--command-config of the printed commands, where needed."),
]


@acls.command()
@with_files
def needed(
    files: TopicFiles,
    clusters: Clusters = None,
    principal: Principals = None,
    command_config: CommandConfig = "admin.properties",
    output: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.COMMANDS,
) -> None:
    """Print the minimum permissions that the flows of a file need, as kafka-acls commands.

    Give a MirrorMaker 2 file, or MirrorMaker 1's two files and --include as for kafka-mirror-maker.
    A feature that is disabled in the file needs no permissions. Nothing is changed.

    Exit codes: 0 printed, 2 wrong usage or file.
    """
    from sparkmirror.control.permissions.needed import needed_permissions  # noqa: PLC0415

    settings = load_settings(files, clusters or ())
    who = _principals(settings, principal or ())
    permissions = needed_permissions(settings, who)
    if output is Format.COMMANDS:
        echo(*needed_text(permissions, command_config))
    else:
        report(permissions).show(tables.Format(output.value))


@acls.command()
def lock(
    file: Mm2File,
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="FLOW", help="The flow whose topics to lock: 'A->B'.", show_default=False
        ),
    ] = None,
    flow: SameFlow = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Set the ACLs with the target's admin client.")
    ] = False,
    readers: Annotated[
        list[str] | None,
        typer.Option(
            "--reader",
            metavar="User:NAME",
            help="Who may read the remote topics; may be repeated; User:* means everybody.",
            show_default=False,
        ),
    ] = None,
    principal: Principals = None,
    command_config: CommandConfig = "admin.properties",
) -> None:
    """Let only the mirror write to the remote topics of a flow.

    Prints the kafka-acls commands that this still needs; --apply sets the ACLs. The mirror gets the
    permissions that it needs on these topics; writes by others are denied. Super users can always
    write.

    Exit codes: 0 printed or done (also if nothing is missing), 1 an ACL prevents it or the cluster
    failed, 2 wrong usage or file.
    """
    flow = one_flow(named, flow)
    settings = load_settings(Files(file))
    wanted = next((one for one in settings.flows if one.name == flow), None)
    if wanted is None:
        named = ", ".join(one.name for one in settings.flows)
        raise ConfigError(
            f"{flow} is not an enabled flow of this file.",
            where=str(file),
            do=f"Choose from: {named}.",
        )
    who = _principals(settings, principal or ())
    for reader in readers or ():
        _check_principal(reader, reader, "--reader", "Write User:NAME.")
    with Connections() as connections:
        target = connections.cluster(wanted.target_admin)
        plan = _lock_plan(wanted, target, who, readers or (), apply=apply)
        echo(*lock_text(plan, wanted, command_config))
        if plan.blocking:
            raise typer.Exit(1)
        if apply:
            _apply(plan, target)


# --- principals and plan ------------------------------------------------------------------------


def _principals(settings: MirrorSettings, given: Sequence[str]) -> Callable[[ClusterClient], str]:
    """The principal of each client: given for its cluster, given for all, or from its login."""
    from sparkmirror.config.clients.sasl import principal_of  # noqa: PLC0415

    by_alias: dict[str, str] = {}
    for text in given:
        alias, equals, rest = text.partition("=")
        # The principal of a certificate contains equals signs, too: User:CN=mirror.
        name, who = (alias, rest) if equals and alias in settings.clusters else ("", text)
        named = ", ".join(settings.clusters)
        do = f"Write User:NAME, or ALIAS=User:NAME for one cluster of the file ({named})."
        _check_principal(who, text, "--principal", do)
        by_alias[name] = who

    def principal(client: ClusterClient) -> str:
        found = by_alias.get(client.alias) or by_alias.get("") or principal_of(client)
        if found is None:
            raise ConfigError(
                f"the settings do not say which principal {client.client_id} has there.",
                where=f"cluster {client.alias}",
                do=f"Add --principal '{client.alias}=User:NAME'.",
            )
        return found

    return principal


def _check_principal(who: str, given: str, where: str, do: str) -> None:
    """Raise ConfigError if ``who`` is not a kind and a name; ``given`` is what errors show."""
    kind, _, name = who.partition(":")
    # No kind has an equals sign: what stands before it would be an alias.
    if not kind or not name or "=" in kind:
        raise ConfigError(f"{given!r} is not a principal.", where=where, do=do)


def _lock_plan(
    flow: FlowSettings,
    target: Cluster,
    who: Callable[[ClusterClient], str],
    readers: Sequence[str],
    *,
    apply: bool,
) -> LockPlan:
    from sparkmirror.control.permissions.acl_lock import plan_lock  # noqa: PLC0415
    from sparkmirror.control.permissions.needed import (  # noqa: PLC0415
        EVERY,
        needed_permissions,
        remote_names,
        remote_patterns,
    )
    from sparkmirror.settings import MirrorSettings  # noqa: PLC0415

    remote = remote_patterns(flow)
    if EVERY in remote:
        raise ConfigError(
            "the remote topics keep their names and may be any topic of the target: a lock would "
            "cover topics that are not mirrored.",
            where=f"flow {flow.name}",
            do=f"Name topics or prefixes (name.*) in {flow.name}.topics.",
        )
    present = target.topic_acls(operation="Alter" if apply else "Describe")
    if present is None:
        raise ClusterError(
            "the cluster has no authorizer, so it allows everything to everybody.",
            where=f"cluster {target.alias}",
            do="Set authorizer.class.name on its brokers.",
        )
    names = {(one.name, one.kind) for one in remote}
    mirror = [
        one.binding
        for one in needed_permissions(MirrorSettings((flow,), ()), who)
        if one.client.alias == flow.target.alias
        and one.binding.resource_type == "TOPIC"
        and (one.binding.name, one.binding.pattern) in names
    ]
    return plan_lock(present, remote, mirror, readers, remote_name=remote_names(flow))


def _apply(plan: LockPlan, target: Cluster) -> None:
    # The mirror is never without its permissions: nothing is removed unless all ACLs were added.
    _raise_first(target.create_acls(plan.create))
    _raise_first(target.delete_acls(plan.remove))
    print(f"# done: {len(plan.create)} ACLs added, {len(plan.remove)} removed")


def _raise_first(outcomes: Sequence[MirrorError | None]) -> None:
    for error in outcomes:
        if error is not None:
            raise error
