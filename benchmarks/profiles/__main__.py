"""Where processor time goes: ``python -m benchmarks.profiles [--only tail] [--seconds 15]``.

A mirror of one slot is sampled in four situations: it catches up, 100 records arrive in a second,
10,000 partitions are nearly idle, and it catches up with a transform in SQL. py-spy samples its
source worker and its sink worker with their native frames, async-profiler its JVM; both see threads
only while they run. For each process there is a flame graph, for all of them a page with their
processor time, which is measured before the profilers take some of it, and the frames in which most
of it is spent.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path

import psutil
from confluent_kafka import Consumer
from tests.faults.harness import SINK, SOURCE, Mirror, write_config
from tests.faults.partitions import CONFIG, make_partitions

from benchmarks.load import LOADS, create, fill
from benchmarks.machine import code, prepared
from benchmarks.measure import end_offsets
from benchmarks.profiles.flames import draw, read_stacks, self_times
from benchmarks.transforms.steps import LOADS as TRANSFORMED
from benchmarks.transforms.steps import WHERE
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.jvm import SERVER_JVM
from sparkmirror.testing.maven import resolve

__all__ = ["main"]

_AGENT = "tools.profiler:async-profiler:4.3@jar"
_INTERVAL_MS, _SPY_HZ = 5, 25
_ALONE_S = 5.0
_PIECE_S = 3  # the JVM's profiler writes what it has so often, and begins anew
_WARM_S = 8.0
_START_MAX_S = 120.0
_TAIL_RATE = 100
_TRANSFORM_RATE, _COMPILING_S = 100_000, 20.0
_PROBE, _PROBE_PARTITIONS = "profile", 4
_PARTITIONS = 10_000
_SHOWN = 12
RESULTS = Path(__file__).parents[1] / "results"


class Scene:
    """Two clusters, and one mirror of them at a time, whose JVM writes stacks into ``work``."""

    def __init__(self, stack: ExitStack, work: Path, config: dict[str, str]) -> None:
        self.work = work
        self._stack = stack
        self.source, self.target = (
            KafkaCluster(name, config=config, heap="1g", jvm=SERVER_JVM) for name in "AB"
        )
        for cluster in (self.source, self.target):
            stack.callback(cluster.stop)
        start_all(self.source, self.target)

    def mirror(self, topics: str, **more: str) -> Mirror:
        """Start it, with ``more`` settings; it ends with the scene."""
        path = write_config(
            self.work / "profile.properties",
            self.source,
            self.target,
            topics,
            **{"tasks.max": "1", "sparkmirror.epoch.seconds": "86400", **more},
        )
        with _profiled_jvm(self.work):
            mirror = Mirror(self.work, path)
        self._stack.callback(mirror.kill)
        return mirror

    def await_records(self, mirror: Mirror, remote: str, partitions: int, more_than: int) -> None:
        """Return when ``remote`` has ``more_than`` records."""
        consumer = Consumer(
            {"bootstrap.servers": self.target.bootstrap_servers, "group.id": "profiles"}
        )
        deadline = time.monotonic() + _START_MAX_S
        try:
            while end_offsets(consumer, remote, partitions) <= more_than:
                if mirror.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{remote} does not grow:\n{mirror.output()}")
                time.sleep(0.1)
        finally:
            consumer.close()


@contextmanager
def _profiled_jvm(work: Path) -> Iterator[None]:
    """JVMs that are started meanwhile write their stacks into ``work``, again and again."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    (jar,) = resolve(_AGENT)
    with zipfile.ZipFile(jar) as files:
        agent = Path(files.extract(f"linux-{machine}/libasyncProfiler.so", work))
    asked = f"start,event=ctimer,interval={_INTERVAL_MS}ms,loop={_PIECE_S}s"
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = f"-agentpath:{agent}={asked},file={work}/jvm-%p-%t.collapsed"
    try:
        yield
    finally:
        os.environ.pop("JAVA_TOOL_OPTIONS")
        if before is not None:
            os.environ["JAVA_TOOL_OPTIONS"] = before


def _catch_up(scene: Scene, seconds: float) -> Mirror:
    """A backlog that lasts for longer than is watched."""
    load = LOADS["100b-16k"]
    create(scene.source.bootstrap_servers, load.topic, load.partitions)
    fill(scene.source, load, int(1_500_000 * (seconds + _WARM_S)))
    mirror = scene.mirror(load.topic)
    scene.await_records(mirror, f"A.{load.topic}", load.partitions, 0)
    return mirror


def _tail(scene: Scene, seconds: float) -> Mirror:
    create(scene.source.bootstrap_servers, _PROBE, _PROBE_PARTITIONS)
    mirror = scene.mirror(_PROBE)
    _write(scene, _START_MAX_S + _WARM_S + seconds)
    scene.await_records(mirror, f"A.{_PROBE}", _PROBE_PARTITIONS, 0)
    time.sleep(_WARM_S)
    return mirror


def _many(scene: Scene, seconds: float) -> Mirror:
    make_partitions(scene.source, _PARTITIONS)
    create(scene.source.bootstrap_servers, _PROBE, _PROBE_PARTITIONS)
    mirror = scene.mirror(f"other-.*,{_PROBE}")
    _write(scene, 3 * _START_MAX_S + seconds)
    scene.await_records(mirror, f"A.{_PROBE}", _PROBE_PARTITIONS, 0)
    # The configs of ten thousand partitions' topics are synced first.
    time.sleep(4 * _WARM_S)
    return mirror


def _transform(scene: Scene, seconds: float) -> Mirror:
    """A backlog of JSON events, of which SQL leaves some out."""
    load, clean = TRANSFORMED["json"], "sparkmirror.transform.clean"
    create(scene.source.bootstrap_servers, load.topic, load.partitions)
    records = fill(scene.source, load, int(_TRANSFORM_RATE * (seconds + _COMPILING_S)))
    options = {f"{clean}.topics": load.topic, f"{clean}.where": WHERE}
    mirror = scene.mirror(load.topic, **{"sparkmirror.transforms": "clean", **options})
    # The JVM has compiled most of the SQL by then.
    scene.await_records(mirror, f"A.{load.topic}", load.partitions, records // 8)
    return mirror


def _write(scene: Scene, seconds: float) -> None:
    """Let a probe write from now on; it ends with the scene."""
    probe = subprocess.Popen(
        [
            *(sys.executable, str(Path(__file__).parents[1] / "probe.py"), "write"),
            *(scene.source.bootstrap_servers, _PROBE, str(_PROBE_PARTITIONS)),
            *(str(seconds), str(_TAIL_RATE)),
        ]
    )
    scene._stack.callback(probe.wait)
    scene._stack.callback(probe.terminate)


SITUATIONS = {
    "catch-up": (_catch_up, {}, "100 B, 16 KiB batches, 12 partitions, with a backlog"),
    "tail": (_tail, {}, f"{_TAIL_RATE} records/s in {_PROBE_PARTITIONS} partitions"),
    "partitions": (_many, CONFIG, f"{_PARTITIONS:,} idle partitions, {_TAIL_RATE} records/s"),
    "transform": (_transform, {}, "1 KiB JSON events, lz4, `where`, with a backlog"),
}


def _watch(mirror: Mirror, work: Path, seconds: float) -> dict[str, tuple[float, list[Path]]]:
    """By process: processor time as a share of a core, and then files of stacks of ``seconds``.

    py-spy stops a process for each sample, for milliseconds: so the shares are measured before.
    """
    pids = {
        "source worker": mirror.workers_as(SOURCE)[0],
        "sink worker": mirror.workers_as(SINK)[0],
        "JVM": mirror.jvm(),
    }
    began = time.monotonic()
    spent = {name: sum(one.cpu_times()[:2]) for name, one in pids.items()}
    time.sleep(_ALONE_S)
    took = time.monotonic() - began
    shares = {name: (sum(one.cpu_times()[:2]) - spent[name]) / took for name, one in pids.items()}
    began_s = time.time()
    spies = {
        name: (
            work / f"{name.replace(' ', '-')}.collapsed",
            subprocess.Popen(
                [
                    *("py-spy", "record", "--pid", str(one.pid), "--native", "--format", "raw"),
                    *("--rate", str(_SPY_HZ), "--duration", str(int(seconds))),
                    *("--output", str(work / f"{name.replace(' ', '-')}.collapsed")),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            ),
        )
        for name, one in pids.items()
        if name != "JVM"
    }
    time.sleep(seconds)
    ended_s = time.time()
    for name, (_, spy) in spies.items():
        _, errors = spy.communicate(timeout=60)
        if spy.returncode:
            raise SystemExit(f"py-spy fails on the {name}: {errors.decode(errors='replace')}")
    time.sleep(_PIECE_S + 1)  # until the JVM's piece is written
    pieces = [
        path
        for path in work.glob(f"jvm-{pids['JVM'].pid}-*.collapsed")
        if began_s + _PIECE_S <= path.stat().st_mtime <= ended_s + _PIECE_S
    ]
    return {
        name: (share, pieces if name == "JVM" else [spies[name][0]])
        for name, share in shares.items()
    }


def _page(name: str, found: dict[str, tuple[float, list[Path]]], directory: Path) -> str:
    """Draw the flame graphs of one situation; its part of the page."""
    lines = [f"## {name}: {SITUATIONS[name][2]}", ""]
    for process, (share, paths) in found.items():
        stacks = read_stacks(paths)
        if not stacks:
            lines += [f"**{process}**: {share:.1%} of a core, no samples", ""]
            continue
        drawn = directory / f"{name}-{process.replace(' ', '-')}.svg"
        draw(stacks, f"{name}, {process}", drawn)
        lines += [
            f"**{process}**: {share:.1%} of a core, {sum(stacks.values()):,} samples"
            f" ([flame graph]({directory.name}/{drawn.name}))",
            "",
            "| in the frame itself | share |",
            "|---|---|",
        ]
        lines += [f"| `{frame}` | {part:.1%} |" for frame, part in self_times(stacks)[:_SHOWN]]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Sample what was asked for, and write page and pictures; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SITUATIONS, default=list(SITUATIONS))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each situation")
    parser.add_argument("--name", default=f"profile-{date.today().isoformat()}")
    options = parser.parse_args()
    prepared(print)
    directory = RESULTS / options.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    measured = code()
    pages = [
        f"# Where processor time goes, {options.name.removeprefix('profile-')}",
        "",
        f"`python -m benchmarks.profiles` at commit `{measured['commit']}`: one slot,"
        f" {psutil.cpu_count()} cores that brokers and profilers share, {options.seconds:.0f} s of"
        f" each situation. Shares of a core are those of the {_ALONE_S:.0f} s before. Frames are"
        " those of threads that run, as `module:line` or function.",
        "",
    ]
    for name in options.only:
        begin, config, _ = SITUATIONS[name]
        with ExitStack() as stack:
            work = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkmirror-profile-"))
            )
            scene = Scene(stack, work, dict(config))
            found = _watch(begin(scene, options.seconds), work, options.seconds)
            pages.append(_page(name, found, directory))
        print(pages[-1], flush=True)
    page = RESULTS / f"{options.name}.md"
    page.write_text("\n".join(pages), encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
