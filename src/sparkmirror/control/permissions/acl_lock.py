"""The ACLs that let only the mirror write to remote topics. Pure.

A DENY binding overrides every ALLOW binding. So other principals are denied one by one: a DENY for
everybody would stop the mirror too. An ALLOW for everybody (``User:*``) is removed instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sparkmirror.control.permissions.needed import Pattern
from sparkmirror.wire.cluster.views import AclBinding

__all__ = ["LockPlan", "plan_lock"]

_EVERYBODY = "User:*"
_WRITING = frozenset({"WRITE", "ALL"})


@dataclass(frozen=True, slots=True)
class LockPlan:
    """Bindings to add and to remove, and those that only the user can decide about.

    ``blocking``: bindings that let everybody write to remote topics and to other topics too.
    ``readable``: whether a principal other than the mirror's may read a remote topic afterwards.
    """

    create: tuple[AclBinding, ...] = ()
    remove: tuple[AclBinding, ...] = ()
    blocking: tuple[AclBinding, ...] = ()
    readable: bool = True


def plan_lock(
    present: Iterable[AclBinding],
    remote: Sequence[Pattern],
    mirror: Sequence[AclBinding],
    readers: Sequence[str] = (),
) -> LockPlan:
    """The changes after which only the mirror may write to ``remote``.

    ``present``: the target's ACLs on topics. ``mirror``: the bindings that the mirror needs on
    ``remote``. ``readers``: principals that shall be able to read.
    """
    there = set(present)
    owners = {binding.principal for binding in mirror}
    wanted = [*mirror, *(_on(pattern, who, "READ") for pattern in remote for who in readers)]
    remove: list[AclBinding] = []
    blocking: list[AclBinding] = []
    for binding in sorted(there):
        if binding.permission != "ALLOW" or binding.operation not in _WRITING:
            continue
        pattern = Pattern(binding.name, binding.pattern)
        met = [each for each in remote if each.meets(pattern)]
        if not met or binding.principal in owners:
            continue
        if binding.principal != _EVERYBODY:
            wanted += [_on(each, binding.principal, "WRITE", permission="DENY") for each in met]
        elif any(each.covers(pattern) for each in met):
            remove.append(binding)
            if binding.operation == "ALL":
                wanted.append(replace(binding, operation="READ"))
        else:
            blocking.append(binding)
    create = tuple(one for one in dict.fromkeys(wanted) if one not in there)
    after = (there - set(remove)) | set(create)
    return LockPlan(create, tuple(remove), tuple(blocking), _readable(after, remote, owners))


def _on(
    pattern: Pattern, principal: str, operation: str, *, permission: str = "ALLOW"
) -> AclBinding:
    return AclBinding("TOPIC", pattern.name, pattern.kind, principal, "*", operation, permission)


def _readable(
    bindings: Iterable[AclBinding], remote: Sequence[Pattern], owners: Iterable[str]
) -> bool:
    return any(
        binding.permission == "ALLOW"
        and binding.operation in ("READ", "ALL")
        and binding.principal not in owners
        and any(each.meets(Pattern(binding.name, binding.pattern)) for each in remote)
        for binding in bindings
    )
