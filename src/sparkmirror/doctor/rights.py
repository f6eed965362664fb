"""Checks the mirror's permissions on both clusters, without changing anything.

Each permission is checked with the client that needs it (`control.permissions.needed`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sparkmirror.control.coordination.orders_topic import orders_topic
from sparkmirror.control.groups.job import checkpoints_topic, offset_topics
from sparkmirror.control.topics.compacted import plan_compacted
from sparkmirror.control.topics.internal_topics import (
    factor_key,
    may_be_smaller,
    offset_storage_topic,
    plan_internal_topics,
)
from sparkmirror.control.topics.replicas import alive, ask_for, too_few_brokers
from sparkmirror.doctor.facts import SourceFacts, TargetFacts
from sparkmirror.doctor.finding import Finding, Level, failed, gathered, listed, ok
from sparkmirror.errors import ConfigError, Denied, MirrorError, TooFewBrokers
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.internal_topics.flow_claims import transactional_id, transactional_id_prefix
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.internal_topics.mm2_records import offset_syncs_topic
from sparkmirror.internal_topics.remote_names import REMOTE_NAMES_TOPIC
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import MirrorMode
from sparkmirror.names.java_regex import compile_list
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.inspector import Inspector, TriedTopic
from sparkmirror.wire.cluster.views import NewTopic

_LITERAL = re.compile(r"[\w.-]+")
_GRANT = (
    "Grant the mirror's principal on {alias} {acl}; sparkmirror acls needed FILE prints all ACLs "
    "that it needs."
)


@dataclass(frozen=True, slots=True)
class Side:
    """The inspectors of one cluster, each with the settings of a client of the mirror.

    ``data`` reads or writes the records. ``syncs`` writes the offset syncs, if they are here.
    ``checkpoints`` reads them and the checkpoints; None: it cannot use the cluster. Clients with
    the same settings share one.
    """

    admin: Inspector
    data: Inspector
    syncs: Inspector
    checkpoints: Inspector | None


def _grant(alias: str, acl: str) -> str:
    return _GRANT.format(alias=alias, acl=acl)


# -- source ----------------------------------------------------------------------------------------


def check_topics(source: Inspector, flow: FlowSettings, facts: SourceFacts) -> list[Finding]:
    """Check that each entry of the topic list matches a topic, and that partitions have leaders."""
    tried = "list the topics and compare them with the list in the file"
    alias = flow.source.alias
    findings = []
    for pattern in _alternatives(flow.topics.include):
        regex = compile_list((pattern,))
        if regex is not None and any(regex.fullmatch(name) for name in facts.topics):
            continue
        subject = f"cluster {alias}, topics {pattern}"
        if not _LITERAL.fullmatch(pattern):
            do = f"Check the list, and that the principal has Describe on its topics on {alias}."
            found = "no visible topic matches it"
            findings.append(Finding("topics", Level.WARN, subject, tried, found, do))
            continue
        error = source.cluster.literal_errors([pattern]).get(pattern)
        if isinstance(error, Denied):
            do = _grant(alias, f"Describe on Topic {pattern}")
            found = error.what.rstrip(".")
            findings.append(Finding("topics", Level.FAIL, subject, tried, found, do))
        elif error is not None:
            do = "Check the spelling. The mirror mirrors the topic as soon as it is created."
            findings.append(
                Finding("topics", Level.WARN, subject, tried, "there is no such topic", do)
            )
        else:
            do = "Check the exclude list and the replication policy."
            found = "the topic exists, but the flow leaves it out"
            findings.append(Finding("topics", Level.WARN, subject, tried, found, do))
    count = len(facts.topics)
    partitions = sum(view.partitions for view in facts.topics.values())
    if count:
        found = f"{count} topics with {partitions} partitions: {listed(sorted(facts.topics))}"
        findings.append(ok("topics", f"cluster {alias}", tried, found))
    return findings + _leaders(flow, facts)


def _alternatives(include: Iterable[str]) -> list[str]:
    """The entries of the list; a plain ``a|b`` counts as two.

    Entries that are a regex only together count as one.
    """
    include = tuple(include)
    try:
        for entry in include:
            compile_list((entry,))
    except ConfigError:
        return ["|".join(include)]
    found: list[str] = []
    for entry in include:
        found += entry.split("|") if re.fullmatch(r"[\w.|*-]+", entry) else [entry]
    return [entry for entry in found if entry]


def _leaders(flow: FlowSettings, facts: SourceFacts) -> list[Finding]:
    tried = "look for partitions without a leader"
    lost = [f"{name}-{number}" for name, view in facts.topics.items() for number in view.leaderless]
    subject = f"cluster {flow.source.alias}"
    if lost:
        do = "Bring the brokers back that hold them; they are mirrored from then on."
        found = f"no leader: {listed(lost)}"
        return [Finding("leaders", Level.WARN, subject, tried, found, do)]
    return [ok("leaders", subject, tried, "every partition has one")] if facts.topics else []


def check_read(reader: Inspector, flow: FlowSettings, facts: SourceFacts) -> list[Finding]:
    """Check Read and DescribeConfigs on the source topics.

    ``reader``: the consumer's. The configs in ``facts`` were read by the admin.
    """
    alias = flow.source.alias
    findings = _refused(
        reader.readable(facts.topics) if facts.topics else {},
        "read",
        "fetch from a partition that does not exist",
        alias,
        "Read",
    )
    tried = "describe the configs of the topics"
    errors = [
        Finding(
            "describe-configs",
            Level.FAIL,
            f"cluster {alias}, topic {name}",
            tried,
            configs.what.rstrip("."),
            _grant(alias, "DescribeConfigs on the topics"),
        )
        for name, configs in facts.configs.items()
        if isinstance(configs, MirrorError)
    ]
    if errors:
        return findings + gathered(errors)
    found = f"{len(facts.configs)} topics"
    return [*findings, ok("describe-configs", f"cluster {alias}", tried, found)]


def _refused(
    allowed: Mapping[str, bool], check: str, tried: str, alias: str, right: str, why: str = ""
) -> list[Finding]:
    """The finding about ``right`` on topics. ``why``: what cannot be done without it."""
    denied = sorted(name for name, may in allowed.items() if not may)
    if denied:
        subject = f"cluster {alias}, topic {listed(denied)}"
        found = f"refused: the principal lacks {right} on {len(denied)} of {len(allowed)} topics"
        found += f", so {why}" if why else ""
        do = _grant(alias, f"{right} on Topic {listed(denied)}")
        return [Finding(check, Level.FAIL, subject, tried, found, do)]
    if not allowed:
        return []
    return [ok(check, f"cluster {alias}", tried, f"{len(allowed)} topics allow it")]


def check_java(reader: Inspector, flow: FlowSettings, _facts: SourceFacts) -> list[Finding]:
    """List members of the MirrorMaker 1 group: the mirror will share the partitions with them."""
    if flow.mode is not MirrorMode.MM1:
        return []
    subject = f"cluster {flow.source.alias}, group {flow.group_id}"
    tried = "look for active members of the group"
    try:
        members = reader.cluster.group_members(flow.group_id) if reader.has_groups() else ()
    except MirrorError as error:
        return [failed("java", subject, tried, error)]
    if not members:
        return [ok("java", subject, tried, "it has none")]
    names = sorted({member.client_id or "a consumer" for member in members})
    told = f"{len(members)} ({', '.join(names[:5])}): they and the mirror share the partitions"
    return [ok("java", subject, tried, told)]


# -- where positions are kept ----------------------------------------------------------------------


def check_group(keeper: Inspector, flow: FlowSettings) -> list[Finding]:
    """Check Read on the group whose committed offsets are the positions. Raises `MirrorError`.

    ``keeper``: of the client that commits them.
    """
    group = flow.position_group
    subject = f"cluster {keeper.alias}, group {group}"
    tried = "request this principal's permissions on the group"
    if not keeper.has_groups():
        what = "the cluster has had no group yet, and a request would create __consumer_offsets"
        do = f"Make sure that the principal has Read on Group {group}."
        return [Finding("group", Level.SKIP, subject, tried, what, do)]
    rights = keeper.group_rights(group)
    if rights is None:
        what = "the broker does not report permissions (it is older than Kafka 2.3)"
        do = f"Make sure that the principal has Read on Group {group}."
        return [Finding("group", Level.SKIP, subject, tried, what, do)]
    missing = sorted({"Read", "Describe"} - rights)
    if missing:
        found = f"the principal lacks {' and '.join(missing)}"
        do = _grant(keeper.alias, f"Read on Group {group}")
        return [Finding("group", Level.FAIL, subject, tried, found, do)]
    return [ok("group", subject, tried, "positions may be committed")]


# -- target ----------------------------------------------------------------------------------------


def check_create(target: Inspector, flow: FlowSettings, facts: TargetFacts) -> list[Finding]:
    """Check creating missing remote topics, and Alter and AlterConfigs on existing ones.

    Raises `MirrorError`.
    """
    alias = target.alias
    tried = "create the missing remote topics with validate_only"
    errors = [
        failed("create", f"cluster {alias}, topic {name}", tried, one.error)
        for name, one in facts.tried.items()
        if one.error is not None
    ]
    errors += _hidden("create", tried, alias, facts.tried)
    findings = gathered(errors)
    if not errors:
        found = f"{len(facts.tried)} would be created, {len(facts.topics)} exist"
        findings = [ok("create", f"cluster {alias}", tried, found)]
    tried = "request this principal's permissions on the existing remote topics"
    rights = target.cluster.topic_rights(sorted(facts.topics))
    known = {name: held for name, held in rights.items() if held is not None}
    needed: list[tuple[str, str]] = []
    if flow.mode is MirrorMode.MM2:  # MirrorMaker 1 never changes topics
        if flow.topics.sync_configs_enabled:
            needed.append(("AlterConfigs", "configs cannot be kept in step with the source"))
        needed.append(("Alter", "the topic cannot grow with the source"))
    for right, why in needed:
        lacking = sorted(name for name, held in known.items() if right not in held)
        check = "alter-configs" if right == "AlterConfigs" else "alter"
        if lacking:
            subject = f"cluster {alias}, topic {listed(lacking)}"
            do = _grant(alias, f"{right} on Topic {listed(lacking)}")
            found = f"the principal lacks {right}: {why}"
            findings.append(Finding(check, Level.WARN, subject, tried, found, do))
        elif known:
            findings.append(ok(check, f"cluster {alias}", tried, f"{len(known)} topics allow it"))
    return findings


def _hidden(
    check: str, tried: str, alias: str, outcomes: Mapping[str, TriedTopic]
) -> list[Finding]:
    """The topics that seemed to be missing, and exist."""
    names = sorted(name for name, one in outcomes.items() if one.existed)
    if not names:
        return []
    subject = f"cluster {alias}, topic {listed(names)}"
    found = "it exists, but the principal lacks Describe and cannot see it"
    do = _grant(alias, f"Describe on Topic {listed(names)}")
    return [Finding(check, Level.FAIL, subject, tried, found, do)]


def check_write(writer: Inspector, flow: FlowSettings, source: SourceFacts) -> list[Finding]:
    """Check Write on all remote topics, existing or not, and Read, which commits of positions need.

    ``writer``: the producer's, which also commits the positions. Raises `MirrorError`.
    """
    names = _remote_names(flow, source)
    if not names:
        return []
    tried = "produce to a partition that does not exist"
    findings = _refused(writer.writable(names), "write", tried, writer.alias, "Write")
    if flow.mode is MirrorMode.MM2:  # MirrorMaker 1 commits the positions at the source
        findings += _commits(writer, names, "positions cannot be committed")
    return findings


def check_group_offsets(admin: Inspector, flow: FlowSettings, source: SourceFacts) -> list[Finding]:
    """Check Read on all remote topics, which the admin needs to commit offsets of groups.

    Records are mirrored without it, so every finding is at most a warning. Raises `MirrorError`.
    """
    names = _remote_names(flow, source)
    if not names or not flow.checkpoints.sync_enabled:
        return []
    found = _commits(admin, names, "offsets of groups cannot be committed")
    return [one if one.level is Level.OK else replace(one, level=Level.WARN) for one in found]


def _remote_names(flow: FlowSettings, source: SourceFacts) -> list[str]:
    wanted = FlowTopics(flow)
    return [wanted.remote(name) for name in source.topics if not wanted.fault(name)]


def _commits(client: Inspector, topics: Iterable[str], why: str) -> list[Finding]:
    """Check Read, without which a broker refuses offsets of the topic."""
    tried = "fetch from a partition that does not exist: commits need the same permission"
    return _refused(client.readable(topics), "commit", tried, client.alias, "Read", why)


def check_transactions(writer: Inspector, flow: FlowSettings) -> list[Finding]:
    """Check Write on the transactional ids of exactly-once. Raises `MirrorError`.

    ``writer``: the producer's.
    """
    if not flow.exactly_once:
        return []
    check, ids = "transactions", transactional_id_prefix(flow)
    subject = f"cluster {writer.alias}, transactional ids {ids}*"
    tried = "produce to a partition that does not exist, in a transaction"
    if writer.may_transact(transactional_id(flow, 0)):
        return [ok(check, subject, tried, "transactions are allowed")]
    found = "refused: the principal lacks Write, so the mirror does not start"
    do = _grant(writer.alias, f"Write on all TransactionalIds that begin with {ids}")
    return [Finding(check, Level.FAIL, subject, tried, found, do)]


def check_internal(admin: Inspector, writer: Inspector, flow: FlowSettings) -> list[Finding]:
    """Check creating, writing and reading the internal topics. Raises `MirrorError`.

    ``admin`` creates them, ``writer`` (the producer's) writes and reads them.
    """
    written, orders = [control_topic(flow), gaps_topic(flow)], orders_topic(flow)
    if flow.mode is MirrorMode.MM2:
        written.append(offset_storage_topic(flow))
    if flow.keeps_names:
        written.append(REMOTE_NAMES_TOPIC)
    names = [*written, orders]
    check, alias = "internal-topics", admin.alias
    tried = "create (validate_only), write and read the mirror's own topics"
    missing = plan_internal_topics(flow, admin.cluster.topics(names))
    outcomes, _ = ask_for(admin.cluster, missing, admin.try_create, may_be_smaller(flow))
    findings = [
        failed(check, f"cluster {alias}, topic {new.name}", tried, error)
        for new in missing
        if (error := _reason(admin, new, factor_key(flow), outcomes[new.name])) is not None
    ]
    # A start looks for them for some seconds, and goes on.
    hidden = _hidden(check, tried, alias, outcomes)
    findings += [replace(one, level=Level.WARN) for one in hidden]
    findings += _lacking(check, tried, alias, writer.writable(written), "Write")
    findings += _lacking(check, tried, alias, writer.readable(written), "Read")
    # Without the orders topic, commands use the control topic, so this is only a warning.
    findings += _lacking(check, tried, alias, writer.readable([orders]), "Read")
    own = f"topic {orders}"
    findings = [replace(f, level=Level.WARN) if f.subject.endswith(own) else f for f in findings]
    return gathered(findings) or [ok(check, f"cluster {alias}", tried, ", ".join(names))]


def check_group_topics(here: Side, flow: FlowSettings, side: str) -> list[Finding]:
    """Check creating, writing and reading the topics of offset syncs and checkpoints on ``side``.

    ``side``: ``source`` or ``target``. Records are mirrored without these topics, so every finding
    is at most a warning. Raises `MirrorError`.
    """
    check, alias, admin = "group-topics", here.admin.alias, here.admin
    wanted = [topic for place, topic in offset_topics(flow) if place == side]
    if side == "target" and flow.checkpoints.enabled:
        wanted.append(checkpoints_topic(flow))
    if not wanted:
        return []
    tried = "create (validate_only), write and read the topics of offset syncs and checkpoints"
    keys = {topic.name: topic.key for topic in wanted}
    plans = [plan_compacted(admin.cluster, topic) for topic in wanted]
    missing = [new for new in plans if new is not None]
    fewer = {topic.name for topic in wanted if topic.at_most_brokers}
    outcomes, _ = ask_for(admin.cluster, missing, admin.try_create, fewer)
    refused = [
        failed(check, f"cluster {alias}, topic {new.name}", tried, error)
        for new in missing
        if (error := _reason(admin, new, keys[new.name], outcomes[new.name])) is not None
    ]
    names = [topic.name for topic in wanted]
    of_syncs = [name for name in names if name == offset_syncs_topic(flow)]
    others = [name for name in names if name not in of_syncs]
    for client, topics in ((here.syncs, of_syncs), (here.data, others)):
        if topics:
            refused += _lacking(check, tried, alias, client.writable(topics), "Write")
    skipped = []
    if flow.checkpoints.enabled:
        runs = [name for name in names if name == runs_topic(flow)]
        rest = [name for name in names if name not in runs]
        for reader, topics in ((here.data, runs), (here.checkpoints, rest)):
            if not topics:
                continue
            if reader is None:
                skipped.append(_not_read(check, tried, alias, topics))
            else:
                refused += _lacking(check, tried, alias, reader.readable(topics), "Read")
    found = [replace(one, level=Level.WARN) for one in refused] + skipped
    return gathered(found) or [ok(check, f"cluster {alias}", tried, ", ".join(names))]


def _reason(admin: Inspector, new: NewTopic, key: str, one: TriedTopic) -> MirrorError | None:
    """Why ``new`` cannot be created; ``key``: the setting with its replicas."""
    if isinstance(one.error, TooFewBrokers):
        return too_few_brokers(admin.alias, new, key, alive(admin.cluster), one.error)
    return one.error


def _not_read(check: str, tried: str, alias: str, topics: Iterable[str]) -> Finding:
    subject = f"cluster {alias}, topic {listed(topics)}"
    what = "reading was not tried, because the consumer of checkpoints cannot use the cluster"
    do = "Repair its network or its login first, then run the command again."
    return Finding(check, Level.SKIP, subject, tried, what, do)


def _lacking(
    check: str, tried: str, alias: str, allowed: Mapping[str, bool], right: str
) -> list[Finding]:
    return [one for one in _refused(allowed, check, tried, alias, right) if one.level is Level.FAIL]
