"""The ACLs that let only the mirror write to remote topics. Pure.

A DENY binding overrides every ALLOW binding. So other principals are denied one by one: a DENY for
everybody would stop the mirror too. An ALLOW for everybody (``User:*``) is removed instead. A
pattern of remote topics may have other topics among them, which the exclude list leaves out: a
denial is as narrow as the permission, and never hits such a topic that is allowed by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from sparkmirror.control.permissions.needed import EVERY, Pattern
from sparkmirror.wire.cluster.views import AclBinding

__all__ = ["LockPlan", "plan_lock"]

_EVERYBODY = "User:*"
_WRITING = frozenset({"WRITE", "ALL"})


@dataclass(frozen=True, slots=True)
class LockPlan:
    """Bindings to add and to remove, and those that only the user can decide about.

    ``blocking``: bindings for everybody on remote topics and other topics too; and those of a
    principal on such, where a denial would hit other topics that it may write to.
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
    *,
    remote_name: Callable[[str], bool] = lambda _: True,
) -> LockPlan:
    """The changes after which only the mirror may write to ``remote``.

    ``present``: the target's ACLs on topics. ``mirror``: the bindings that the mirror needs on
    ``remote``. ``readers``: principals that shall be able to read. ``remote_name``: whether a name
    that ``remote`` covers is to be locked (`needed.remote_names`).
    """
    there = set(present)
    owners = {binding.principal for binding in mirror}
    wanted = [*mirror, *(_on(pattern, who, "READ") for pattern in remote for who in readers)]
    remove: list[AclBinding] = []
    blocking: list[AclBinding] = []
    writing = [
        (binding, Pattern(binding.name, binding.pattern))
        for binding in sorted(there)
        if binding.permission == "ALLOW" and binding.operation in _WRITING
    ]
    others = [
        (binding.principal, pattern)
        for binding, pattern in writing
        if _is_name(pattern) and not remote_name(pattern.name)
    ]
    denials: list[AclBinding] = []
    for binding, pattern in writing:
        who = binding.principal
        met = [each for each in remote if each.meets(pattern)]
        if not met or who in owners or (_is_name(pattern) and not remote_name(pattern.name)):
            continue
        if who != _EVERYBODY:
            narrow = [each if pattern.covers(each) else pattern for each in met]
            new = [each for each in narrow if not _denied(each, who, there)]
            hit = {name for principal, name in others if principal in (who, _EVERYBODY)}
            if any(each.covers(name) for each in new for name in hit):
                blocking.append(binding)
            else:
                denials += [_on(each, who, "WRITE", permission="DENY") for each in new]
        elif any(each.covers(pattern) for each in met):
            remove.append(binding)
            if binding.operation == "ALL":
                wanted.append(replace(binding, operation="READ"))
        else:
            blocking.append(binding)
    wanted += [one for one in denials if not _denied_by_others(one, denials)]
    create = tuple(one for one in dict.fromkeys(wanted) if one not in there)
    after = (there - set(remove)) | set(create)
    return LockPlan(create, tuple(remove), tuple(blocking), _readable(after, remote, owners))


def _is_name(pattern: Pattern) -> bool:
    return pattern.kind == "LITERAL" and pattern != EVERY


def _denied(pattern: Pattern, who: str, present: Iterable[AclBinding]) -> bool:
    """Whether ``who`` is denied writing to all of ``pattern`` already, from any host."""
    return any(
        one.permission == "DENY"
        and one.operation in _WRITING
        and one.host == "*"
        and one.principal in (who, _EVERYBODY)
        and Pattern(one.name, one.pattern).covers(pattern)
        for one in present
    )


def _denied_by_others(denial: AclBinding, denials: Collection[AclBinding]) -> bool:
    others = (one for one in denials if one != denial)
    return _denied(Pattern(denial.name, denial.pattern), denial.principal, others)


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
