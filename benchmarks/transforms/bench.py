"""Measures the steps of `steps`, with the turns, the sizes and the figures of `benchmarks.run`."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from benchmarks import report
from benchmarks.figures import Round
from benchmarks.load import Load, create, delete
from benchmarks.measure import (
    CatchUp,
    Processors,
    TreeWatch,
    end_offsets,
    latencies,
    missed,
    quantiles,
    watch_catch_up,
)
from benchmarks.peers import Running
from benchmarks.run import COPY_MAX_S, Bench, say
from benchmarks.transforms.check import Ends, difference, read_ends
from benchmarks.transforms.records import arriving
from benchmarks.transforms.start import start_loop, start_mirror
from benchmarks.transforms.steps import (
    LOADS,
    OTHER,
    PARTITIONS,
    PROBE_PARTITIONS,
    PROBE_RATE,
    PROBE_S,
    SETTLE_S,
    TOOLS,
    Step,
    Tool,
)
from sparkmirror.testing.clusters import KafkaCluster

__all__ = ["TransformBench", "rounds_of"]

ROUNDS, SMOKE_ROUNDS, SMOKE_PROBE_S = 3, 1, 5.0
LOOP_PROCESSES = (1, 2)
PLAIN = "bench-plain"
_SETTLED_MAX_S = 30.0


def rounds_of(smoke: bool) -> int:
    """How many rounds every tool has in every step."""
    return SMOKE_ROUNDS if smoke else ROUNDS


class TransformBench(Bench):
    """Copies and latencies of `TOOLS`."""

    def __init__(self, a: KafkaCluster, b: KafkaCluster, work: Path, *, smoke: bool) -> None:
        super().__init__(a, b, work, smoke=smoke)
        self.number = rounds_of(smoke)
        self.form = ("json",)
        self.beside = False
        self.trial_tools: list[str] = []
        # How many processes a loop has, and the rates by which that was chosen.
        self.processes: dict[str, int] = {}
        self.choices: dict[str, dict[str, float]] = {}
        self._source: tuple[tuple[str, int], dict[int, Ends]] | None = None

    def measure(self, name: str, step: Step, tools: Sequence[str]) -> dict[str, Any]:
        """Measure step ``name`` with ``tools``; says what was found, how and how long it took."""
        began, at = time.monotonic(), datetime.datetime.now().astimezone()
        self.settings, self.choices, self.beside = {}, {}, step.beside
        self._empty()
        if not self.smoke:
            self.window_s = step.window_s
        self.trial_tools = [one for one in step.trials if one in tools] or list(tools[:1])
        copies = name in LOADS
        found = self.catch_up(name, LOADS[name], tools) if copies else self.probes(name, tools)
        return {
            **found,
            "choices": self.choices,
            "began": at.isoformat(timespec="seconds"),
            "took_s": round(time.monotonic() - began),
            "settings": self.settings,
        }

    def _empty(self) -> None:
        """Delete what a step that failed has left: no step is to find the topics of another."""
        for cluster in (self.a, self.b):
            servers = cluster.bootstrap_servers
            consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench-watch"})
            names = consumer.list_topics(timeout=10).topics
            consumer.close()
            delete(servers, *(name for name in names if not name.startswith("__")))
        self._source = None

    # -- copies ----------------------------------------------------------------------------

    def _trials(
        self, name: str, load: Load, records: int, gigabytes: float, peers: Sequence[str]
    ) -> dict[str, Round]:
        """Copies that do not count: how many processes a loop is best with, and how much data."""
        for key in (one for one in peers if not TOOLS[one].peer):
            rates = {}
            for processes in LOOP_PROCESSES:
                self.processes[key] = processes
                one = self._copy(load, records, gigabytes, key)
                say(f"{name} {key}, {processes} processes: {report.brief(one)}")
                rates[str(processes)] = one["rate"]
            self.choices[key] = rates
            self.processes[key] = int(max(rates, key=lambda each: rates[each]))
        trials = {}
        for key in self.trial_tools:
            trials[key] = self._copy(load, records, gigabytes, key)
            say(f"{name} {key}, to find the size: {report.brief(trials[key])}")
        return trials

    def _long_enough(self, one: Round) -> bool:
        # A smoke run says that all works, and does not begin anew.
        return self.smoke or super()._long_enough(one)

    def _copy(self, load: Load, records: int, gigabytes: float, key: str) -> Round:
        """One copy. Rates are of the source's records, also of those that are left out.

        ``wrong``: what is wrong with the copy; empty: nothing.
        """
        tool = TOOLS[key]
        remote = tool.remote.format(topic=load.topic)
        result = CatchUp(arriving(tool.output, records), gigabytes)
        os.sync()  # nobody pays for what another one left in the page cache
        create(self.b.bootstrap_servers, remote, load.partitions)
        topics, remotes = [load.topic], [remote]
        if self.beside:
            topics, remotes = [*topics, OTHER], [*remotes, f"A.{OTHER}"]
            create(self.a.bootstrap_servers, OTHER, PARTITIONS)
            create(self.b.bootstrap_servers, f"A.{OTHER}", PARTITIONS)
        processors = Processors()
        wrong = ""
        with self._started(key, load, topics) as (running, tree):
            with self._trickle():
                watch_catch_up(
                    self.b.bootstrap_servers,
                    remote,
                    load.partitions,
                    result,
                    tree,
                    running.began,
                    timeout_s=COPY_MAX_S,
                )
            shares = processors.shares(tree)
            result.stolen, result.elsewhere = shares["stolen"], shares["elsewhere"]
            if self.beside:
                wrong = self._other_arrives(key, PARTITIONS)
            self._check(running, key)
        wrong = self._wrong(load, records, tool, result) or wrong
        if self.beside:
            delete(self.a.bootstrap_servers, OTHER)
        # MirrorMaker 2 also creates the topic with the policy's name.
        self._clean(*remotes, f"A.{load.topic}")
        result.rate *= records / result.records
        return {**result.document(), "source_records": records, "wrong": wrong}

    @contextmanager
    def _started(
        self, key: str, load: Load, topics: Sequence[str], *, latency: bool = False
    ) -> Iterator[tuple[Running, TreeWatch]]:
        tool = TOOLS[key]
        if tool.peer:
            running = start_mirror(tool, self.servers, topics, self.work, latency=latency)
        else:
            running = start_loop(tool, self.servers, load, self.work, self.processes[key])
        self.settings[key] = running.settings
        tree = TreeWatch(running.process.pid)
        try:
            yield running, tree
        finally:
            tree.close()
            running.stop()

    @contextmanager
    def _trickle(self) -> Iterator[None]:
        """Write documents to `OTHER`, if it is mirrored, at the probe's rate."""
        if not self.beside:
            yield
            return
        words = (self.a.bootstrap_servers, OTHER, PARTITIONS, COPY_MAX_S, PROBE_RATE, *self.form)
        script = str(Path(__file__).parents[1] / "probe.py")
        process = subprocess.Popen([sys.executable, script, "write", *map(str, words)])
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)

    def _wrong(self, load: Load, records: int, tool: Tool, result: CatchUp) -> str:
        if not result.complete or result.surplus:
            return f"{result.records + result.surplus:,} records instead of {result.records:,}"
        if self._source is None or self._source[0] != (load.topic, records):
            ends = read_ends(self.a.bootstrap_servers, load.topic, load.partitions)
            self._source = (load.topic, records), ends
        remote = tool.remote.format(topic=load.topic)
        target = read_ends(self.b.bootstrap_servers, remote, load.partitions)
        return difference(tool.output, self._source[1], target)

    def _other_arrives(self, key: str, partitions: int) -> str:
        """What is wrong with the copy of `OTHER`, when all of it should be there."""
        transformed = any(OTHER in text for text in TOOLS[key].lines.values())
        remote = f"A.{OTHER}"
        source, target = (
            Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "bench-watch"})
            for cluster in (self.a, self.b)
        )
        try:
            wanted = end_offsets(source, OTHER, partitions)
            deadline = time.monotonic() + _SETTLED_MAX_S
            while (found := end_offsets(target, remote, partitions)) < wanted:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
        finally:
            source.close()
            target.close()
        if not wanted or found != wanted:
            return f"{OTHER}: {found:,} records instead of {wanted:,}"
        ends = read_ends(self.a.bootstrap_servers, OTHER, partitions)
        got = read_ends(self.b.bootstrap_servers, remote, partitions)
        text = difference("mask" if transformed else "same", ends, got)
        return f"{OTHER}, {text}" if text else ""

    # -- latency ---------------------------------------------------------------------------

    def probes(self, name: str, tools: Sequence[str]) -> dict[str, Any]:
        """Probe records through every tool, in turns, in `PLAIN` and `OTHER` at once."""
        seconds = SMOKE_PROBE_S if self.smoke else PROBE_S
        rounds, repeated, _ = self.rounds(name, tools, lambda key: self._probes(key, seconds))
        return {
            "kind": "latency",
            "rate": PROBE_RATE,
            "seconds": seconds,
            "rounds": rounds,
            "repeated": repeated,
        }

    def _probes(self, key: str, seconds: float) -> Round:
        """``target`` and ``source`` are of `PLAIN`, ``other`` is of `OTHER` at the target."""
        topics = (PLAIN, OTHER)
        for topic in topics:
            create(self.a.bootstrap_servers, topic, PROBE_PARTITIONS)
            create(self.b.bootstrap_servers, f"A.{topic}", PROBE_PARTITIONS)
        with ExitStack() as stack:
            running, tree = stack.enter_context(
                self._started(key, LOADS["raw"], topics, latency=True)
            )
            pool = stack.enter_context(ThreadPoolExecutor(len(topics)))
            # Both at once, as later.
            list(pool.map(lambda one: self._warm(one, f"A.{one}", PROBE_PARTITIONS), topics))
            if not self.smoke:
                list(pool.map(lambda one: self._latencies(one, SETTLE_S), topics))
            processors = Processors(tree)
            plain, other = pool.map(lambda one: self._latencies(one, seconds), topics)
            one: Round = {place: quantiles(values) for place, values in plain.items()}
            one["other"] = quantiles(other["target"])
            one |= processors.shares(tree)
            one["wrong"] = self._other_arrives(key, PROBE_PARTITIONS)
            for place in ("target", "other"):
                one["wrong"] = one["wrong"] or missed(one["source"], one[place], place)
            self._check(running, key)
        delete(self.a.bootstrap_servers, *topics)
        self._clean(*(f"A.{topic}" for topic in topics))
        return one

    def _latencies(self, topic: str, seconds: float) -> dict[str, list[float]]:
        work = self.work / f"probes-{topic}"
        work.mkdir(exist_ok=True)
        return latencies(
            self.a.bootstrap_servers,
            self.b.bootstrap_servers,
            topic,
            f"A.{topic}",
            PROBE_PARTITIONS,
            rate=PROBE_RATE,
            seconds=seconds,
            work=work,
            form=self.form,
        )
