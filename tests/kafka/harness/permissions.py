"""Files of mirrors that log in, what they must be allowed to do, and a run of one without Spark."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.config.mm1.load import Extras, load_mm1
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.jobs import run_once
from sparkmirror.control.loop import ControlLoop
from sparkmirror.control.sync_jobs import sync_jobs
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.epoch_record import begin_epoch
from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.errors import MirrorError
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import MirrorSettings
from sparkmirror.wire.cluster.views import AclBinding
from tests.kafka.clusters.authorized import ADMIN, Authorized, properties
from tests.kafka.harness.mirror_process import wait_until, write_mm2
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Received,
    admin,
    consume_all,
    topic_names,
)

Pair = tuple[Authorized, Authorized]

# More lines of a file, by mode; a transaction takes offset syncs on the target in.
MODES: dict[str, dict[str, str]] = {
    "at-least-once": {},
    "exactly-once": {
        "B.exactly.once.source.support": "enabled",
        "offset-syncs.topic.location": "target",
    },
}
TOOL = "org.apache.kafka.tools.AclCommand"


def login(pair: Pair, user: str, aliases: Iterable[str]) -> dict[str, str]:
    """The lines of a MirrorMaker 2 file that log ``user`` in on both sides."""
    lines = {}
    for alias, cluster in zip(aliases, pair, strict=True):
        lines[f"{alias}.bootstrap.servers"] = cluster.login_servers
        lines[f"{alias}.security.protocol"] = "SASL_PLAINTEXT"
        lines |= {f"{alias}.{key}": value for key, value in properties(user).items()}
    return lines


def mm2(pair: Pair, user: str, alias: str, topics: str, directory: Path, **extra: str) -> Path:
    more = {name.replace("__", "."): value for name, value in extra.items()}
    settings = {"tasks.max": "1", **login(pair, user, (alias, "B")), **more}
    source, target = (each.kafka for each in pair)
    path = directory / f"{alias}.properties"
    return write_mm2(path, source, target, topics, settings, source=alias)


def needed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, AclBinding]]:
    """What the verb names: cluster alias and binding."""
    capsys.readouterr()
    assert main(["acls", "needed", *arguments, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    return [
        (row.pop("cluster"), AclBinding(**{key: row[key] for key in row if key != "why"}))
        for row in rows
    ]


def granted(pair: Pair, alias: str, found: list[tuple[str, AclBinding]]) -> None:
    for name, cluster in zip((alias, "B"), pair, strict=True):
        cluster.allow(binding for cluster_alias, binding in found if cluster_alias == name)


def run_commands(text: str, cluster: Authorized, directory: Path) -> list[AclBinding]:
    """Run the printed commands with Kafka's own tool, as a super user; four at once."""
    config = directory / "admin.properties"
    lines = {"security.protocol": "SASL_PLAINTEXT", **properties(ADMIN)}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("kafka-acls.sh")]
    before = set(cluster.acls(""))

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        told = [str(config) if word == "admin.properties" else word for word in words[1:]]
        return cluster.kafka.tool(TOOL, *told)

    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(run, commands):
            assert done.returncode == 0, done.stdout + done.stderr
    return sorted(set(cluster.acls("")) - before)


def attempt(settings: MirrorSettings) -> list[str]:
    """All jobs of a run of one flow, without Spark; errors and notices."""
    (flow,) = settings.flows
    run_id = uuid.uuid4().hex
    loop = ControlLoop(settings, once=True, run_id=run_id)
    told: list[str] = []
    try:
        loop.prepare()
        loop._owned = frozenset({flow.name})  # as once its threads have started
        share = loop._flows[flow.name].share
        if share is not None:
            share.step()  # nobody else is in the group, so it deals all partitions to us
            told += map(str, loop.failures())
        partitions = loop.assignment(flow.name).partitions
        ends = loop.frozen_ends(flow.name)
        published = loop._flows[flow.name].published
        record = (
            begin_epoch(flow, run_id, ControlWatch(flow, run_id)) if flow.exactly_once else None
        )
        for plan in plan_slots(
            partitions, slots_max=1, epoch=0, run_id=run_id, ends=ends, control_offset=0,
            version=published.version, member=published.member,
        ):  # fmt: skip
            reader = SlotReader(flow, replace(plan, record=record))
            SlotSink(flow).run(reader.rows())
            told += [halt.reason for halt in reader._fetcher.halts.values()]
    except MirrorError as error:
        told.append(str(error))
    loop.finish(timeout_s=5)  # a member leaves its group
    for beats in loop._heartbeats:
        for _ in range(3):  # brokers take a moment to know a topic that was just made
            try:
                beats.beat()
                break
            except MirrorError as error:
                told.append(str(error))
            time.sleep(0.5)
    told += loop.events()
    loop.stop()
    control = FlowControl(flow, run_id, told.append, once=True)
    control.published._assignment = loop.assignment(flow.name)
    synced = sync_jobs(flow, control.clusters, FlowTopics(flow), control.published, told.append)
    for job in (partial(run_once, control.slots), *(job.once for job in synced)):
        try:
            job()
        except MirrorError as error:
            told.append(str(error))
    control.close()
    return told


def names(line: str, binding: AclBinding, alias: str) -> bool:
    """Whether an error or notice says who lacks what, where, and the command that grants it.

    The resource of a prefix is one whose name begins with it.
    """
    operation = binding.operation.title().replace("_", "")
    cluster = binding.resource_type == "CLUSTER"
    kind = binding.resource_type.title().replace("_", "")
    word = binding.resource_type.lower().replace("_", "-")
    resource = "the Cluster" if cluster else f"{kind} {binding.name}"
    name = binding.name.replace(">", "")  # it is quoted for a shell
    option = "--cluster" if cluster else f"--{word} {name}"
    return (
        f"Grant {binding.principal} {operation} on {resource}" in line
        and f" on cluster {alias}: kafka-acls.sh --bootstrap-server " in line
        and f" --allow-principal {binding.principal} --operation {operation} {option}"
        in line.replace("'", "").replace(">", "")
    )


def delete_topics(cluster: Authorized, names: Iterable[str]) -> None:
    """Those of ``names`` that exist; waits until they are gone."""
    gone = set(names) & topic_names(cluster.kafka)
    if gone:
        guard = admin(cluster.kafka)
        for future in guard.delete_topics(list(gone)).values():
            future.result(TIMEOUT_S)
        wait_until(lambda: not gone & topic_names(cluster.kafka), "topics are deleted")


def mm1(pair: Pair, user: str, topic: str, directory: Path) -> tuple[list[str], MirrorSettings]:
    """MirrorMaker 1's options for a mirror of ``topic`` as ``user``, and what they say.

    By key or not makes no difference to permissions; without, no Spark is needed.
    """
    files = {}
    of_consumer = f"group.id=mm1-{uuid.uuid4().hex[:8]}\nauto.offset.reset=earliest\n"
    for side, cluster, more in zip(("consumer", "producer"), pair, (of_consumer, ""), strict=True):
        lines = {"bootstrap.servers": cluster.login_servers, "security.protocol": "SASL_PLAINTEXT"}
        lines |= properties(user)
        files[side] = directory / f"{side}.properties"
        files[side].write_text("".join(f"{k}={v}\n" for k, v in lines.items()) + more)
    options = [word for side, path in files.items() for word in (f"--{side}.config", str(path))]
    extras = Extras(keep_partitions=True)
    settings = load_mm1(files["consumer"], files["producer"], include=topic, extras=extras)
    return [*options, "--include", topic], settings


def arrived(cluster: Authorized, topic: str) -> list[Received]:
    return consume_all(cluster.kafka, topic) if topic in topic_names(cluster.kafka) else []
