"""The drop-in command ``kafka-mirror-maker``: MirrorMaker 1's options and exit codes.

Exit codes are those of the Java tool: 1 for ``--help``, missing or wrong options, wrong files and a
failed start; 255 if the mirror failed while running, or did not copy everything with ``--once``;
0 for ``--version``, after Ctrl+C and when ``--once`` has copied everything; 130 after Ctrl+C before
the mirror runs; 143 after a drain by SIGTERM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sparkmirror.cli.shared.errors import run_command, show_error
from sparkmirror.config.table.setting import java_int
from sparkmirror.errors import ConfigError, MirrorError

_EXIT_WRONG = 1
_EXIT_FAILED = 255
_EXIT_SIGTERM = 143
# run_mirror's exit codes -> the Java tool's; other codes are the same.
_EXIT_CODES = {1: _EXIT_FAILED, 2: _EXIT_WRONG, 3: _EXIT_WRONG}
_START_FAILED = 3

_NOT_EXACT = "the group's offsets are on the source, and no transaction spans two clusters"

# Options of 0.7 to 0.9 that tuned what no longer exists.
_WITHOUT_EFFECT = {
    "new.consumer": "there is only one consumer",
    "new.producer": "there is only one producer",
    "num.producers": "each stream has its own producer",
    "queue.size": "there is no queue between consumer and producer",
}


class _Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of ending the process with argparse's exit code."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{message[:1].upper()}{message[1:]}.",
            where=self.prog,
            do=f"Run {self.prog} --help to see the options.",
        )


def _int(text: str) -> int:
    try:
        return java_int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' {error}") from None


class _Once(argparse.Action):
    """An option with a value: as with Java, it may not be there twice."""

    _given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Store the value."""
        if option_string is not None and self._given:
            parser.error(f"{option_string} is given more than once")
        self._given = True
        setattr(namespace, self.dest, values)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kafka-mirror-maker",
        description="This tool helps to continuously copy data between two Kafka clusters.",
        add_help=False,
    )
    parser.register("action", None, _Once)
    _add_supported(parser)
    _add_callables(parser)
    parser.add_argument("--help", action="store_true", help="Print this information.")
    parser.add_argument("--version", action="store_true", help="Print the version.")
    return parser


def _add_supported(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="A MirrorMaker 2 file instead of both files; it runs as with connect-mirror-maker.",
    )
    parser.add_argument(
        "--consumer.config",
        "--consumer",
        dest="consumer.config",
        metavar="FILE",
        type=Path,
        action="append",
        help="Properties of the consumer of the source cluster. Required; repeat it for several "
        "source clusters. Files of 0.7 to 0.11 are understood too.",
    )
    parser.add_argument(
        "--producer.config",
        "--producer",
        dest="producer.config",
        metavar="FILE",
        type=Path,
        help="Properties of the producer of the target cluster. Required.",
    )
    parser.add_argument(
        "--include",
        metavar="REGEX",
        help="Topics to mirror: Java regexes, separated by commas.",
    )
    parser.add_argument(
        "--whitelist",
        "--white-list",
        metavar="REGEX",
        help="DEPRECATED, use --include instead; ignored if --include is given.",
    )
    parser.add_argument(
        "--blacklist",
        "--black-list",
        metavar="REGEX",
        help="Mirror all topics except these, instead of --include (MirrorMaker 0.7 to 1.1).",
    )
    parser.add_argument(
        "--num.streams",
        dest="num_streams",
        metavar="N",
        type=_int,
        help="Parallel streams of each source cluster: Spark tasks that share its partitions. "
        "(default: 1)",
    )
    parser.add_argument(
        "--offset.commit.interval.ms",
        dest="offset_commit_interval_ms",
        metavar="MS",
        type=_int,
        default=60_000,
        help="Maximum time between two commits of the group's offsets, which are committed at "
        "least every second. (default: 60000)",
    )
    parser.add_argument(
        "--abort.on.send.failure",
        "--abort.on.send.fail",
        "--abortOnSendFail",
        dest="abort_on_send_failure",
        metavar="BOOLEAN",
        nargs="?",
        const="true",
        default="true",
        help="Stop when records cannot be written to the target, so that none are lost; false "
        "drops and counts them (numDroppedMessages). (default: true)",
    )
    parser.add_argument(
        "--keep.partitions",
        dest="keep_partitions",
        action="store_true",
        help="Keep each record's partition number and copy whole batches, which is several times "
        "faster. Without it, records are partitioned by key, as with MirrorMaker 1.",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="Copy what the source holds now, commit the group's offsets, print a summary and "
        "exit; the next run continues from there. If the group has other members, only this "
        "process's share is copied.",
    )
    for name, reason in _WITHOUT_EFFECT.items():
        flag = name.startswith("new.")
        parser.add_argument(
            f"--{name}",
            dest=name,
            help=f"DEPRECATED, has no effect: {reason}.",
            **({"action": "store_true"} if flag else {"type": _int, "metavar": "N"}),
        )
    parser.add_argument(
        "--sparkmirror.master",
        dest="master",
        metavar="URL",
        default="local[*]",
        help="Spark master to run on: local[*] (default), local[N] or spark://host:port.",
    )
    parser.add_argument(
        "--sparkmirror.metrics",
        dest="metrics",
        metavar="HOST:PORT",
        default="",
        help="Serve /metrics (Prometheus) and /health on this local address, such as "
        "127.0.0.1:9404.",
    )


def _add_callables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exactly-once",
        dest="exactly_once",
        action="store_true",
        help=f"Not supported: {_NOT_EXACT}.",
    )
    for name, text in (
        ("message.handler", "Python function, or class, that is called with each record "
         "(sparkmirror.model.SourceRecord) and returns the TargetRecords to write, or None"),
        ("consumer.rebalance.listener", "Python class with on_partitions_revoked and "
         "on_partitions_assigned, or function that takes the event and the partitions"),
    ):  # fmt: skip
        parser.add_argument(
            f"--{name}", dest=name, metavar="MODULE:NAME", default="", help=f"{text}."
        )
    for name, of in (
        ("message.handler.args", "message handler"),
        ("rebalance.listener.args", "rebalance listener"),
    ):
        parser.add_argument(
            f"--{name}", dest=name, metavar="TEXT",
            help=f"Passed to the {of}: to the constructor of a class, or to a function as its last "
            "argument.",
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` (default: the process's); returns the exit code."""
    return run_command(_command, argv, defect_code=_EXIT_WRONG)


def _command(arguments: list[str]) -> int:
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return _EXIT_WRONG
    try:
        options = parser.parse_args(arguments)
        if options.help:
            parser.print_help(sys.stderr)
            return _EXIT_WRONG
        if options.version:
            return _print_version()
        if options.file is not None:
            return _run_mm2(parser, options)
        missing = _missing(options)
        if missing:
            print(f'Missing required argument "[{missing}]"', file=sys.stderr)
            parser.print_help(sys.stderr)
            return _EXIT_WRONG
        include = _checked_include(options)
    except MirrorError as error:
        show_error(error)
        return _EXIT_WRONG
    return _run(options, include)


def _run_mm2(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run a MirrorMaker 2 file, with this command's exit codes. Raises `MirrorError`."""
    from sparkmirror.cli.run.parts import RunOptions  # noqa: PLC0415
    from sparkmirror.cli.run.run import run_mirror  # noqa: PLC0415
    from sparkmirror.config.mm2.load import load_mm2  # noqa: PLC0415

    own = {"file", "master", "metrics", "once"}
    defaults = vars(parser.parse_args([]))
    given = [name for name, value in vars(options).items() if value != defaults[name]]
    for action in parser._actions:
        if action.dest in given and action.dest not in own:
            raise ConfigError(
                "this option is for MirrorMaker 1's files; a MirrorMaker 2 file needs none.",
                where=action.option_strings[0],
                do=f"Leave it out, or leave out {options.file}.",
            )
    settings = load_mm2(options.file, heartbeats_will_do=not options.once)
    run_options = RunOptions(
        master=options.master,
        once=options.once,
        sigterm_exit_code=_EXIT_SIGTERM,
        start_failure_exit_code=_START_FAILED,
        metrics=options.metrics,
        option_prefix="sparkmirror.",
    )
    code = run_mirror(settings, run_options)
    return _EXIT_CODES.get(code, code)


def _missing(options: argparse.Namespace) -> str:
    given = vars(options)
    return next((key for key in ("consumer.config", "producer.config") if given[key] is None), "")


def _checked_include(options: argparse.Namespace) -> str | None:
    """The include list, if one is given. Raises ConfigError for a wrong option."""
    from sparkmirror.cli.shared.settings_options import include_list  # noqa: PLC0415

    if options.exactly_once:
        raise ConfigError(
            f"This option is not supported: {_NOT_EXACT}.",
            where="--exactly-once",
            do="Turn the files into a MirrorMaker 2 file with 'sparkmirror migrate-config', which "
            "keeps positions on the target, and use 'sparkmirror run FILE --exactly-once'.",
        )
    abort = options.abort_on_send_failure.strip().lower()
    if abort not in ("true", "false"):
        raise ConfigError(
            f"'{options.abort_on_send_failure}' is neither true nor false.",
            where="--abort.on.send.failure",
            do="Leave the option out, or write true or false.",
        )
    for name, args in (
        ("message.handler", "message.handler.args"),
        ("consumer.rebalance.listener", "rebalance.listener.args"),
    ):
        _check_callable(name, vars(options)[name], vars(options)[args])
        if vars(options)[args] is not None and not vars(options)[name]:
            print(f"warning: --{args} has no effect without --{name}.", file=sys.stderr)
    include = include_list(options.include, options.whitelist)
    for name, reason in _WITHOUT_EFFECT.items():
        value = vars(options)[name]
        if value is not None and value is not False:
            print(f"warning: --{name} has no effect: {reason}.", file=sys.stderr)
    return include


def _check_callable(option: str, name: str, args: str | None) -> None:
    """Raise ConfigError now if the named callable does not exist, not in the first task."""
    if name:
        from sparkmirror.config.callables import load_callable, load_once  # noqa: PLC0415

        # The run calls the same listener; handlers are loaded again where the tasks run.
        load = load_once if option == "consumer.rebalance.listener" else load_callable
        load(name, args, where=f"--{option}")


def _run(options: argparse.Namespace, include: str | None) -> int:
    given = vars(options)
    try:
        from sparkmirror.cli.run.parts import RunOptions  # noqa: PLC0415
        from sparkmirror.cli.run.run import run_mirror  # noqa: PLC0415
        from sparkmirror.cli.shared.settings_options import look_up_brokers  # noqa: PLC0415
        from sparkmirror.config.mm1.load import Extras, load_mm1  # noqa: PLC0415

        settings = load_mm1(
            given["consumer.config"],
            given["producer.config"],
            include=include,
            exclude=options.blacklist,
            num_streams=options.num_streams,
            offset_commit_interval_ms=options.offset_commit_interval_ms,
            find_brokers=look_up_brokers,
            extras=Extras(
                keep_partitions=options.keep_partitions,
                handler=given["message.handler"],
                handler_args=given["message.handler.args"],
                listener=given["consumer.rebalance.listener"],
                listener_args=given["rebalance.listener.args"],
                abort_on_send_failure=options.abort_on_send_failure.strip().lower() == "true",
            ),
        )
        run_options = RunOptions(
            master=options.master,
            once=options.once,
            sigterm_exit_code=_EXIT_SIGTERM,
            start_failure_exit_code=_START_FAILED,
            metrics=options.metrics,
            option_prefix="sparkmirror.",
        )
    except MirrorError as error:
        show_error(error)
        return _EXIT_WRONG
    code = run_mirror(settings, run_options)
    return _EXIT_CODES.get(code, code)


def _print_version() -> int:
    from sparkmirror.cli.run.run import tool_version  # noqa: PLC0415

    print(tool_version())
    return 0


if __name__ == "__main__":
    sys.exit(main())
