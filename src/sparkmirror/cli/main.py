"""The ``sparkmirror`` command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkmirror.cli.shared.errors import run_command, show_error
from sparkmirror.cli.shared.settings_options import (
    KeepPartitions,
    NumStreams,
    TopicFiles,
    load_settings,
    spark_conf,
    with_files,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="sparkmirror",
    help="Mirror topics between Apache Kafka clusters, from MirrorMaker's own files.",
    epilog="Example: sparkmirror run mm2.properties. Each command's --help has one, too."
    " connect-mirror-maker and kafka-mirror-maker are installed as well: the Java tools' names,"
    " flags and exit codes.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LogFormat(StrEnum):
    """How progress, logs and errors are written."""

    TEXT = "text"
    JSON = "json"


Once = Annotated[
    bool,
    typer.Option(
        "--once",
        help="Copy what the source holds now, print a summary and exit; the next run continues"
        " from there.",
    ),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="A,B",
        help="Serve only flows into these clusters; repeat the option or separate the aliases"
        " by commas. Default: all.",
        show_default=False,
    ),
]
ExactlyOnce = Annotated[
    bool,
    typer.Option(
        "--exactly-once",
        help="Write records and positions in one transaction, in all flows, as"
        " B.exactly.once.source.support=enabled does for one target.",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Spark master: local[N], local[*] or spark://host:port.",
        rich_help_panel="Spark",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A Spark setting, as for spark-submit; may be repeated.",
        show_default=False,
        rich_help_panel="Spark",
    ),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Directory for logs and Spark's temporary files. Default: a new directory below"
        " ~/.local/state/sparkmirror/runs, where the newest ten are kept.",
        show_default=False,
        rich_help_panel="Spark",
    ),
]
Ui = Annotated[
    bool,
    typer.Option(
        "--ui",
        help="Show Spark's page on 127.0.0.1, for requests with a token from a file in the work"
        " directory. Needs a local master.",
        rich_help_panel="Spark",
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        help="text: the live view in a terminal, else one line per flow and interval."
        " json: one object per line.",
        rich_help_panel="Output",
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The log file. Default: sparkmirror.log in the work directory.",
        show_default=False,
        rich_help_panel="Output",
    ),
]
Interval = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        max=86_400,
        help="Time between two progress lines when there is no live view.",
        rich_help_panel="Output",
    ),
]
Metrics = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Serve /metrics (Prometheus) and /health on this address; port 0 means any free"
        " port, PORT alone means 127.0.0.1. Overrides sparkmirror.metrics.listen in the file.",
        show_default="off",
        rich_help_panel="Output",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take over the flows at once from the processes that mirror them, instead of standing"
        " by.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Log details, and show stack traces with errors.",
        rich_help_panel="Output",
    ),
]


@app.command(
    rich_help_panel="Start", epilog="Example: sparkmirror run mm2.properties --metrics 9404"
)
@with_files
def run(
    files: TopicFiles,
    num_streams: NumStreams = None,
    keep_partitions: KeepPartitions = False,
    once: Once = False,
    clusters: Clusters = None,
    exactly_once: ExactlyOnce = False,
    take_over: TakeOver = False,
    master: Master = "local[*]",
    conf: Conf = None,
    work_dir: WorkDir = None,
    ui: Ui = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_file: LogFile = None,
    interval: Interval = 5.0,
    metrics: Metrics = "",
    debug: Debug = False,
) -> None:
    """Run the flows of a MirrorMaker 2 file until Ctrl+C (or, with --once, until all is copied).

    For MirrorMaker 1's files use --consumer.config, --producer.config and --include. The command
    kafka-mirror-maker has the Java tool's other options.

    Ctrl+C or SIGTERM drains: all records that were read are written, positions are committed, and
    the command ends within ten seconds. A second one stops at once and loses nothing. Closing the
    terminal also drains. SIGHUP otherwise looks for new topics and partitions at once.

    Several processes may run one file, on one host or several: one of them mirrors each flow at a
    time, and the others stand by for it.

    Exit codes: 0 ended as requested, 1 a failure during the run or (--once) a partition that was
    not copied, 2 wrong usage or configuration, 3 the start failed, 130 stopped at once.
    """
    json_lines = log_format is LogFormat.JSON
    try:
        from sparkmirror.cli.run.parts import RunOptions  # noqa: PLC0415
        from sparkmirror.cli.run.run import run_mirror  # noqa: PLC0415

        options = RunOptions(
            master=master,
            once=once,
            debug=debug,
            log_format=log_format.value,
            log_file=log_file,
            interval_s=interval,
            spark_conf=spark_conf(conf or ()),
            work_dir=work_dir,
            metrics=metrics,
            take_over=take_over,
            ui=ui,
        )
        settings = load_settings(
            files,
            clusters or (),
            num_streams=num_streams,
            keep_partitions=keep_partitions,
            exactly_once=exactly_once,
        )
    except Exception as error:
        shown = show_error(error, debug=debug, json_lines=json_lines)
        raise typer.Exit(shown.exit_code) from error
    raise typer.Exit(run_mirror(settings, options))


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="The same as the version command.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    """Do nothing: Typer declares the options before a command in a callback."""


@app.command(rich_help_panel="Start")
def version() -> None:
    """Print the versions of sparkmirror and of what it runs on."""
    import platform  # noqa: PLC0415
    from importlib.metadata import version as installed  # noqa: PLC0415

    from sparkmirror.cli.run.run import tool_version  # noqa: PLC0415

    print(f"sparkmirror {tool_version()}")
    print(
        f"PySpark {installed('pyspark')}, kafka-python {installed('kafka-python')},"
        f" Python {platform.python_version()}"
    )


@app.command(rich_help_panel="Start", epilog="Example: sparkmirror prepare")
def prepare(debug: Debug = False) -> None:
    """Make each start some seconds faster: run this once, after an installation or an update.

    It lets Java write an archive of the classes that Spark loads, some 200 MB, which takes about a
    minute. The archive is written into the virtual environment, if you may write there, else into
    your cache directory. Runs find it by themselves; a run without it only starts later. If the
    archive for this Java and this PySpark is there already, nothing is done.

    Exit codes: 0 the archive is there, 1 it could not be made.
    """
    try:
        from sparkmirror.data.spark.preparation import prepare as made  # noqa: PLC0415

        archive = made(print)
        mb = archive.path.stat().st_size / 1e6
    except Exception as error:
        raise typer.Exit(show_error(error, debug=debug).exit_code) from error
    print(f"Spark's class archive is there: {archive.path} ({mb:.0f} MB)")


# The groups of commands in --help, in this order.
START, CHECK, LOOK, CONTROL, PROVE, MIGRATE = (
    "Start", "Check before a run", "Inspect", "Control", "Verify", "Migrate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Verb:
    """A command in a module of the same name, as a function or a Typer (a group of commands).

    ``module``: the module's name if it differs.
    """

    group: str
    example: str
    module: str = ""


_VERBS = {
    "demo": _Verb(START, "sparkmirror demo --keep"),
    "config": _Verb(CHECK, "sparkmirror config mm2.properties --given"),
    "doctor": _Verb(CHECK, "sparkmirror doctor mm2.properties --problems"),
    "plan": _Verb(CHECK, "sparkmirror plan mm2.properties"),
    "transform": _Verb(CHECK, "sparkmirror transform try mm2.properties", "transforms.transform"),
    "acls": _Verb(CHECK, "sparkmirror acls needed mm2.properties"),
    "status": _Verb(LOOK, "sparkmirror status mm2.properties"),
    "lag": _Verb(LOOK, "sparkmirror lag mm2.properties --watch"),
    "topics": _Verb(LOOK, "sparkmirror topics mm2.properties"),
    "groups": _Verb(LOOK, "sparkmirror groups mm2.properties"),
    "offsets": _Verb(LOOK, "sparkmirror offsets translate mm2.properties 'A->B' --group billing"),
    "clusters": _Verb(LOOK, "sparkmirror clusters mm2.properties"),
    "gaps": _Verb(LOOK, "sparkmirror gaps mm2.properties --since 7d"),
    "history": _Verb(LOOK, "sparkmirror history mm2.properties --since 12h"),
    "pause": _Verb(CONTROL, "sparkmirror pause mm2.properties 'A->B'", "control_commands"),
    "resume": _Verb(CONTROL, "sparkmirror resume mm2.properties 'A->B'", "control_commands"),
    "drain": _Verb(CONTROL, "sparkmirror drain mm2.properties", "control_commands"),
    "throttle": _Verb(
        CONTROL, "sparkmirror throttle mm2.properties 'A->B' 50MB/s", "control_commands"
    ),
    "verify": _Verb(PROVE, "sparkmirror verify mm2.properties --topic 'orders.*'"),
    "migrate-config": _Verb(
        MIGRATE,
        "sparkmirror migrate-config --consumer.config consumer.properties"
        " --producer.config producer.properties --include 'orders.*' --output mm2.properties",
    ),
    "discover": _Verb(
        MIGRATE, "sparkmirror discover ambari --url https://ambari:8443 --cluster prod"
    ),
}


def _add_verbs(arguments: Sequence[str]) -> None:
    """Register the commands of `_VERBS`, once each: the one that is named, or else all of them."""
    named = arguments[0] if arguments else ""
    if named in ("run", "prepare", "version", "--version"):
        return
    wanted = {named: _VERBS[named]} if named in _VERBS else _VERBS
    registered = {command.name for command in app.registered_commands}
    registered |= {group.name for group in app.registered_groups}
    for name, about in wanted.items():
        if name not in registered:
            function = name.replace("-", "_")
            verb: typer.Typer | Callable[..., object] = getattr(
                importlib.import_module(f"sparkmirror.cli.verbs.{about.module or function}"),
                function,
            )
            epilog = f"Example: {about.example}"
            if isinstance(verb, typer.Typer):
                app.add_typer(verb, name=name, rich_help_panel=about.group, epilog=epilog)
            else:
                app.command(name=name, rich_help_panel=about.group, epilog=epilog)(verb)


def _command() -> Any:
    """The whole command; its --help shows flags without a value."""
    command: Any = typer.main.get_command(app)

    def plain(one: Any, help_names: list[str]) -> None:
        names = one.context_settings.get("help_option_names", help_names)
        asked = one.get_help_option(typer.Context(one, help_option_names=names))
        for option in [*one.params, *([asked] if asked else [])]:
            if getattr(option, "is_flag", False):
                option.metavar = ""
        for each in getattr(one, "commands", {}).values():
            plain(each, names)

    plain(command, ["--help"])
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (``sys.argv[1:]``) and return the exit code."""
    return run_command(_run, argv)


def _run(arguments: list[str]) -> int:
    try:
        _add_verbs(arguments)
        _command().main(args=arguments, prog_name="sparkmirror")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except Exception as error:
        return show_error(error, debug="--debug" in arguments).exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
