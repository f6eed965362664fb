"""``sparkmirror demo``: two real Kafka clusters, a mirror between them, and a comparison."""

from __future__ import annotations

import itertools
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from sparkmirror.demo.run import Demo, DemoOptions
from sparkmirror.demo.scenario import TOPICS
from sparkmirror.observe.console import PrintableConsole
from sparkmirror.observe.figures.comparison_result import PartitionResult
from sparkmirror.testing.jvm import KAFKA_VERSION, KAFKA_VERSIONS
from sparkmirror.testing.maven import Fetching

_EXIT_DIFFERENT = 1


class _Screen:
    """Shows the demo's steps on the terminal, or as plain lines if stdout is not a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)

    @contextmanager
    def step(self, doing: str) -> Iterator[Callable[[str], None]]:
        lines: list[str] = []
        if not self.console.is_terminal:
            self.console.print(f"[dim]…[/] {doing}", highlight=False)
        status = self.console.status(f"{doing} …")
        self._status = status
        status.start()
        try:
            yield lines.append
        finally:
            status.stop()
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
        for line in lines:
            self.console.print(f"[green]✓[/] {line}", highlight=False)

    def fetching(self, progress: Fetching) -> None:
        """Show the download: first the modules that are resolved, then the jars."""
        if not self.console.is_terminal:
            if progress.done % 15 == 0:
                count = f"{progress.done} of {progress.total}" if progress.total else progress.done
                self.console.print(f"  {progress.phase}: {count}", highlight=False)
            return
        if progress.phase == "resolve":
            self._status.update(f"Kafka: finding jars ({progress.done}) [dim]{progress.name}[/]")
            return
        if self._progress is None:
            self._status.stop()
            self._progress = Progress(
                TextColumn("Kafka"),
                BarColumn(),
                TextColumn("{task.completed} of {task.total} jars"),
                TextColumn("{task.fields[mb]:.0f} MB [dim]{task.fields[file]}[/]"),
                console=self.console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("jars", total=progress.total, mb=0.0, file="")
        self._progress.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            mb=progress.bytes / 1e6,
            file=progress.name,
        )


def _known_version(version: str) -> str:
    if version not in KAFKA_VERSIONS:
        raise typer.BadParameter(f"the demo runs on {' or '.join(KAFKA_VERSIONS)}")
    return version


def demo(
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep both clusters running until Ctrl+C, and print what to try next."
        ),
    ] = False,
    records: Annotated[
        int,
        typer.Option(
            metavar="N", min=100, max=100_000_000, help="Total records of the volume topics."
        ),
    ] = 200_000,
    seconds: Annotated[
        float,
        typer.Option(metavar="S", min=1, max=3_600, help="How long the live traffic lasts."),
    ] = 12.0,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the records' contents; repeats them.")
    ] = 1,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Keep data, logs and mm2.properties in this new directory.",
            show_default=False,
        ),
    ] = None,
    port_a: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65_535, help="Port of cluster A; 0: any.")
    ] = 0,
    port_b: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65_535, help="Port of cluster B; 0: any.")
    ] = 0,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Show the mirror's live view or plain lines.")
    ] = True,
    kafka_version: Annotated[
        str,
        typer.Option(
            metavar="|".join(KAFKA_VERSIONS), callback=_known_version, help="Kafka's release."
        ),
    ] = KAFKA_VERSION,
) -> None:
    """Mirror between two real Kafka clusters on this machine, and prove that nothing is missing.

    Downloads Apache Kafka, starts clusters A and B, fills topics of every kind on A with Kafka's
    own producers, runs `sparkmirror run mm2.properties` while they continue, then reads both sides
    with Kafka's own consumer and compares every partition. Ctrl+C cleans up at any time.

    Exit codes: 0 all records are equal, 1 something differs or failed, 130 interrupted.
    """
    options = DemoOptions(records, seconds, seed, directory, (port_a, port_b), live, kafka_version)
    console = PrintableConsole()
    started = time.monotonic()
    with _signals_as_ctrl_c(), Demo(options, _Screen(console)) as one:
        try:
            one.prepare()
            console.print(
                f"[green]✓[/] now mirroring: [bold]sparkmirror run {one.file}[/]",
                highlight=False,
                soft_wrap=True,
            )
            sys.stdout.flush()
            one.mirror()
            results = one.verify()
            equal = all(result.equal for result in results)
            console.print(_table(results))
            took = time.monotonic() - started
            console.print(_verdict(results, one.traffic.aborted, took), highlight=False)
            if keep:
                _keep(console, one)
        except KeyboardInterrupt:
            _say_stopping(console, "[yellow]interrupted:[/] ")
            raise typer.Exit(130) from None
    raise typer.Exit(0 if equal else _EXIT_DIFFERENT)


@contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack as Ctrl+C does, so that everything is cleaned up."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    watched = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP
        watched.append(signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _table(results: Sequence[PartitionResult]) -> Table:
    """One row per topic, with a green dot or a red cross for each partition."""
    table = Table(
        title="A and B, record by record (a topic t is A.t on B)",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in ("topic", "codec", "contents", "partitions"):
        table.add_column(heading, no_wrap=True)
    table.add_column("on A", justify="right")
    table.add_column("on B", justify="right")
    table.add_column("result")
    known = {topic.name: topic for topic in TOPICS}
    for name, group in itertools.groupby(results, key=lambda result: result.topic):
        rows = list(group)
        topic = known.get(name)
        marks = "".join("[green]●[/]" if row.equal else "[red]✗[/]" for row in rows)
        copies = [row.target.records for row in rows if row.target is not None]
        wrong = ", ".join(str(row.partition) for row in rows if not row.equal)
        table.add_row(
            name,
            topic.compression if topic else "",
            topic.shows if topic else "not on A",
            marks,
            f"{sum(row.source.records for row in rows):,}",
            f"{sum(copies):,}" if copies else "missing",
            f"[red]different: {wrong}[/]" if wrong else "[green]equal[/]",
        )
    return table


def _verdict(results: Sequence[PartitionResult], aborted: int, took_s: float) -> str:
    wrong = sum(not result.equal for result in results)
    records = sum(result.source.records for result in results)
    if wrong:
        return f"[bold red]{wrong} of {len(results)} partitions differ[/] ({took_s:.0f} s)"
    return (
        f"[bold green]All {records:,} records in {len(results)} partitions are equal[/]: keys,"
        f" values, headers, timestamps, order; {aborted} aborted records were not mirrored"
        f" ({took_s:.0f} s)"
    )


def own_command() -> str:
    """The ``sparkmirror`` command as another terminal can call it, with its path if needed."""
    own = Path(sys.executable).with_name("sparkmirror")
    if not own.exists():
        return shlex.join([sys.executable, "-m", "sparkmirror"])
    found = shutil.which("sparkmirror")
    on_path = found is not None and own.samefile(found)
    return "sparkmirror" if on_path else shlex.quote(str(own))


def next_steps(one: Demo) -> dict[str, list[str]]:
    """Command lines to try while both clusters stay up, by purpose."""
    tools = shlex.quote(str(one.directory / "bin"))
    a, b = one.a.bootstrap_servers, one.b.bootstrap_servers
    copy = one.remote_topic("orders")
    own, file = own_command(), shlex.quote(str(one.file))
    return {
        "": [f"{own} run {file}"],
        "In a third terminal, write to A:": [
            f"{tools}/kafka-console-producer.sh --bootstrap-server {a} --topic orders"
        ],
        "See it arrive on B:": [
            f"{tools}/kafka-console-consumer.sh --bootstrap-server {b} --topic {copy}"
        ],
        "Show its state, and whether both sides are equal:": [
            f"{own} status {file}",
            f"{own} lag {file} --watch",
            f"{own} topics {file}",
            f"{own} verify {file}",
        ],
        "Pause it, resume it, drain it:": [
            f"{own} pause {file}",
            f"{own} resume {file}",
            f"{own} drain {file}",
        ],
        "See the topics on B:": [
            f"{tools}/kafka-topics.sh --bootstrap-server {b} --list",
            f"{tools}/kafka-topics.sh --bootstrap-server {b} --describe --topic {copy}",
            f"{tools}/kafka-get-offsets.sh --bootstrap-server {b} --topic {copy}",
        ],
    }


def _keep(console: Console, one: Demo) -> None:
    """Print what to try next, and wait for Ctrl+C."""
    console.print("\n[bold]Both clusters are up.[/] In a second terminal, continue mirroring:")
    for title, commands in next_steps(one).items():
        if title:
            console.print(title)
        for command in commands:
            # Not wrapped, so that the line can be copied.
            console.print(f"  [cyan]{command}[/]", soft_wrap=True, highlight=False)
    console.print("[bold]Ctrl+C here[/] stops both clusters and removes their data.")
    try:
        while True:
            time.sleep(3_600)
    except KeyboardInterrupt:
        _say_stopping(console)


def _say_stopping(console: Console, why: str = "") -> None:
    with suppress(OSError):  # the terminal may have been closed
        console.print(f"{why}stopping the clusters …", highlight=False)
