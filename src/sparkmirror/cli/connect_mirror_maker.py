"""The drop-in command ``connect-mirror-maker``: MirrorMaker 2's arguments and exit codes.

Exit codes are those of the Java tool: 255 for ``--help``, wrong arguments and a file that cannot be
read (1 without arguments, as in its shell script); 2 for a wrong configuration and any other error
before the start; 3 for a failed start; 0 after a drain by Ctrl+C, 143 after one by SIGTERM; 130
after Ctrl+C before the mirror runs; 1 if a flow failed while running.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sparkmirror.cli.shared.errors import run_command, show_error
from sparkmirror.errors import ConfigError, MirrorError

_EXIT_USAGE = 255
_EXIT_NO_ARGUMENTS = 1
_EXIT_DEFECT = 2
_EXIT_SIGTERM = 143


class _Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of ending the process with argparse's exit code."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{message[:1].upper()}{message[1:]}.",
            where=self.prog,
            do=f"Usage: {self.format_usage().removeprefix('usage: ').strip()}",
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="connect-mirror-maker",
        # Written by hand: the file is required, except with --help or --version.
        usage="%(prog)s [-h] [--version] mm2.properties [--clusters CLUSTER [CLUSTER ...]] "
        "[--sparkmirror.master URL]",
        description="MirrorMaker 2.0 driver: mirrors topics between Kafka clusters as a "
        "MirrorMaker 2 properties file says, until Ctrl+C or SIGTERM stops it. It first writes all "
        "records that were read.",
        add_help=False,
    )
    parser.add_argument(
        "config",
        metavar="mm2.properties",
        type=Path,
        nargs="?",
        help="MirrorMaker 2 configuration file",
    )
    parser.add_argument(
        "--clusters",
        metavar="CLUSTER",
        nargs="+",
        default=[],
        help="serve only flows to these target clusters (default: all); put the file first",
    )
    parser.add_argument(
        "--sparkmirror.master",
        dest="master",
        metavar="URL",
        default="local[*]",
        help="Spark master to run on: local[*] (default), local[N] or spark://host:port",
    )
    parser.add_argument("-daemon", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` (default: the process's); returns the exit code."""
    return run_command(_command, argv, defect_code=_EXIT_DEFECT)


def _command(arguments: list[str]) -> int:
    parser = _parser()
    if not arguments:
        print(parser.format_usage().replace("usage:", "USAGE:", 1), end="", file=sys.stderr)
        return _EXIT_NO_ARGUMENTS
    try:
        options = parser.parse_args(arguments)
        if options.help:
            parser.print_help()
            return _EXIT_USAGE
        if options.version:
            return _print_version()
        _check_arguments(parser, options)
    except MirrorError as error:
        show_error(error)
        return _EXIT_USAGE
    return _run(options)


def _check_arguments(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.daemon:
        raise ConfigError(
            "-daemon is an option of Kafka's shell scripts; this command stays in the foreground.",
            where=parser.prog,
            do="Let a service manager keep it running (a systemd unit with "
            "ExecStart=connect-mirror-maker mm2.properties and KillMode=mixed), or write "
            "'nohup connect-mirror-maker mm2.properties &'.",
        )
    if options.config is None:
        parser.error("the argument mm2.properties is missing")
    # Only an unreadable file is a wrong argument; wrong contents are a configuration error.
    from sparkmirror.config.files.properties import read_file  # noqa: PLC0415

    read_file(options.config)


def _run(options: argparse.Namespace) -> int:
    try:
        from sparkmirror.cli.run.parts import RunOptions  # noqa: PLC0415
        from sparkmirror.cli.run.run import run_mirror  # noqa: PLC0415
        from sparkmirror.config.mm2.load import load_mm2  # noqa: PLC0415

        settings = load_mm2(options.config, clusters=options.clusters, heartbeats_will_do=True)
        run_options = RunOptions(
            master=options.master, sigterm_exit_code=_EXIT_SIGTERM, option_prefix="sparkmirror."
        )
    except MirrorError as error:
        return show_error(error).exit_code
    return run_mirror(settings, run_options)


def _print_version() -> int:
    from sparkmirror.cli.run.run import tool_version  # noqa: PLC0415

    print(tool_version())
    return 0


if __name__ == "__main__":
    sys.exit(main())
