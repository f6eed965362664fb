"""A missing permission in words, and the command that grants it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sparkmirror.config.clients.sasl import principal_of
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.views import AclBinding

__all__ = ["COMMAND_CONFIG", "Right", "grant", "kafka_acls_command", "spelled"]

COMMAND_CONFIG = "admin.properties"
# Placeholder for a principal that only the broker knows.
_SOMEBODY = "User:NAME"
_CLUSTER = "kafka-cluster"


@dataclass(frozen=True, slots=True)
class Right:
    """One operation on one resource, in the terms of ACLs.

    ``operation`` as ``kafka-acls.sh`` spells it (``DescribeConfigs``); ``kind``: ``Topic``,
    ``Group``, ``Cluster`` or ``TransactionalId``. ``name`` is empty for the cluster, and for
    several resources that a broker refused together. ``note``: a further permission that is
    needed, or one that suffices instead. ``prefixed``: ``name`` is a prefix of resource names.
    """

    operation: str
    kind: str
    name: str = ""
    note: str = ""
    prefixed: bool = False

    def __str__(self) -> str:
        if self.kind == "Cluster":
            resource = "the Cluster"
        elif self.name:
            resource = f"{self.kind} {self.name}"
        else:
            resource = f"the {self.kind.lower()}s"
        return f"{self.operation} on {resource}{self.note and ' '}{self.note}"


def grant(client: ClusterClient, right: Right) -> str:
    """Advice for a ``client`` that lacks ``right``: the principal, and the command that grants it.

    If only the broker knows the principal (certificates, tickets, tokens), the command has a
    placeholder.
    """
    try:
        principal = principal_of(client)
    except ConfigError:
        principal = None
    who = principal or "the principal of this client"
    text = f"Grant {who} {right} on cluster {client.alias}"
    if right.kind != "Cluster" and not right.name:
        return f"{text}; sparkmirror acls needed FILE prints the commands."
    name = right.name or _CLUSTER
    kind = "TRANSACTIONAL_ID" if right.kind == "TransactionalId" else right.kind.upper()
    pattern = "PREFIXED" if right.prefixed else "LITERAL"
    binding = AclBinding(kind, name, pattern, principal or _SOMEBODY, "*", right.operation, "ALLOW")
    return f"{text}: {kafka_acls_command([binding], client)}"


def kafka_acls_command(
    bindings: Sequence[AclBinding],
    client: ClusterClient,
    command_config: str = COMMAND_CONFIG,
    verb: str = "--add",
) -> str:
    """One ``kafka-acls.sh`` command line, quoted for a shell.

    ``bindings`` differ only in the operation. ``command_config``: file with the administrator's
    client properties; left out if the client's ``security.protocol`` is PLAINTEXT.
    """
    first = bindings[0]
    words = ["kafka-acls.sh", "--bootstrap-server", ",".join(client.bootstrap_servers)]
    if client.security_protocol != "PLAINTEXT":
        words += ["--command-config", command_config]
    words += [verb] if verb == "--add" else [verb, "--force"]
    kind = "allow" if first.permission == "ALLOW" else "deny"
    words += [f"--{kind}-principal", first.principal]
    if first.host != "*":
        words += [f"--{kind}-host", first.host]
    for binding in bindings:
        words += ["--operation", spelled(binding.operation)]
    if first.resource_type == "CLUSTER":
        words.append("--cluster")
    else:
        words += [f"--{first.resource_type.lower().replace('_', '-')}", first.name]
    if first.pattern == "PREFIXED":
        words += ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)


def spelled(operation: str) -> str:
    """``DESCRIBE_CONFIGS`` or ``DescribeConfigs`` as the latter."""
    return operation.title().replace("_", "") if operation.isupper() else operation
