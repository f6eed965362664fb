"""The drop-in command ``kafka-run-class``: runs replacements of Kafka's classes by their names.

Old instructions start MirrorMaker 1 and its lag tools by class name. Exit codes are those of the
replacement; 1 if the class is missing or unknown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sparkmirror.cli import connect_mirror_maker, kafka_mirror_maker
from sparkmirror.cli.shared.errors import run_command, show_error
from sparkmirror.errors import ConfigError, MirrorError

_EXIT_WRONG = 1
_PROG = "kafka-run-class"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` (default: the process's); returns the exit code."""
    return run_command(_command, argv, defect_code=_EXIT_WRONG)


def _command(arguments: list[str]) -> int:
    try:
        name, others = _class(arguments)
        return _CLASSES[name](others)
    except MirrorError as error:
        show_error(error)
        return _EXIT_WRONG


def _class(arguments: list[str]) -> tuple[str, list[str]]:
    """The class and its arguments, without the options of Kafka's shell script."""
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option == "-daemon":
            raise ConfigError(
                "-daemon is an option of Kafka's shell scripts; this command stays in the "
                "foreground.",
                where=_PROG,
                do="Let a service manager keep it running, or write 'nohup kafka-run-class … &'.",
            )
        if option == "-name" and arguments:
            arguments.pop(0)
        elif option != "-loggc":
            raise ConfigError(
                f"{option} is not an option of this command.", where=_PROG, do=f"Usage: {_USAGE}"
            )
    if not arguments:
        raise ConfigError("No class is named.", where=_PROG, do=f"Usage: {_USAGE}")
    name = arguments.pop(0)
    if name not in _CLASSES:
        raise ConfigError(
            f"this command has no replacement of class {name}.",
            where=_PROG,
            do=f"It replaces {', '.join(_CLASSES)}; for others use Kafka's own kafka-run-class.sh.",
        )
    return name, arguments


def _lag(arguments: Sequence[str]) -> int:
    from sparkmirror.cli.main import main as sparkmirror  # noqa: PLC0415

    return sparkmirror(["lag", *arguments])


def _offset_checker(arguments: Sequence[str]) -> int:
    """Check that a group is named; the other options are those of ``sparkmirror lag``."""
    if not arguments or "--group" not in {text.partition("=")[0] for text in arguments}:
        raise ConfigError(
            'Missing required argument "[group]".',
            where="kafka.tools.ConsumerOffsetChecker",
            do="Write --group G [--zookeeper HOST:PORT] [--topic T,U] [--broker-info].",
        )
    return _lag(arguments)


class _GroupParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{message[:1].upper()}{message[1:]}.",
            where=self.prog,
            do="This replacement only supports --describe --group G with --bootstrap-server "
            "HOST:PORT [--command-config FILE] [--timeout MS] or --zookeeper HOST:PORT; for the "
            "rest use kafka-consumer-groups.sh.",
        )


def _group_command(arguments: Sequence[str]) -> int:
    parser = _GroupParser(
        prog="kafka.admin.ConsumerGroupCommand", add_help=False, allow_abbrev=False
    )
    parser.add_argument("--describe", action="store_true", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--new-consumer", action="store_true")
    parser.add_argument("--offsets", action="store_true")
    same = {
        "--bootstrap-server": "--bootstrap-server",
        "--zookeeper": "--zkconnect",
        "--command-config": "--command-config",
        "--timeout": "--socket.timeout.ms",
    }
    for option in same:
        parser.add_argument(option, dest=option)
    given = vars(parser.parse_args(list(arguments)))
    passed = [text for old, new in same.items() if given[old] for text in (new, given[old])]
    return _lag(["--group", given["group"], *passed, "--format", "groups"])


_CLASSES: dict[str, Callable[[Sequence[str]], int]] = {
    "kafka.tools.MirrorMaker": kafka_mirror_maker.main,
    "kafka.tools.ConsumerOffsetChecker": _offset_checker,
    "kafka.admin.ConsumerGroupCommand": _group_command,
    "org.apache.kafka.connect.mirror.MirrorMaker": connect_mirror_maker.main,
}
_USAGE = f"{_PROG} CLASS [OPTIONS], where CLASS is one of {', '.join(_CLASSES)}"


if __name__ == "__main__":
    sys.exit(main())
