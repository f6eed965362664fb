"""``sparkmirror discover ambari``: a cluster's addresses as lines for MirrorMaker's files."""

from __future__ import annotations

import getpass
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared import tables
from sparkmirror.errors import ClusterError, ConfigError, Defect
from sparkmirror.observe.logs import register_secret
from sparkmirror.text import echo, printable

if TYPE_CHECKING:
    from sparkmirror.wire.legacy.ambari import Found

_LOCAL = ("localhost", "127.0.0.1", "::1")


class Source(StrEnum):
    """The service that knows the addresses."""

    AMBARI = "ambari"


class Format(StrEnum):
    """How the addresses are printed."""

    PROPERTIES = "properties"
    JSON = "json"


def discover(
    source: Annotated[
        Source, typer.Argument(metavar="ambari", help="Service to query.", show_default=False)
    ],
    url: Annotated[
        str,
        typer.Option(metavar="URL", help="Ambari's address: https://host[:port]."),
    ],
    cluster: Annotated[str, typer.Option(metavar="NAME", help="The cluster's name in Ambari.")],
    user: Annotated[str, typer.Option(metavar="NAME", help="Ambari's user.")] = "admin",
    password: Annotated[
        str | None,
        typer.Option(
            metavar="REFERENCE",
            help="Where the password is: env:NAME or file:PATH, never the password itself."
            " Default: prompt for it.",
            show_default=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM certificates to trust. Default: the machine's.",
            show_default=False,
        ),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option(
            metavar="ALIAS",
            help="Write the lines for this cluster of a MirrorMaker 2 file.",
            show_default=False,
        ),
    ] = None,
    broker_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_535,
            help="Default: the port of the first listener that Ambari reports, else 9092.",
            show_default=False,
        ),
    ] = None,
    zookeeper_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_535,
            help="Default: the port in the brokers' zookeeper.connect, else 2181.",
            show_default=False,
        ),
    ] = None,
    ip: Annotated[
        bool,
        typer.Option(
            "--ip", help="Print IP addresses instead of names, if names do not resolve here."
        ),
    ] = False,
    output_format: Annotated[
        Format, typer.Option("--format", help="properties: lines for a file. json: one document.")
    ] = Format.PROPERTIES,
) -> None:
    """Print bootstrap.servers and zookeeper.connect of a cluster that Ambari manages, by name and
    by IP address, and the brokers' configured listeners.

    Only reads Ambari's REST API, with basic authentication.

    Exit codes: 0 printed, 1 Ambari did not respond or refused, 2 wrong usage.
    """
    from sparkmirror.wire.legacy.ambari import (  # noqa: PLC0415
        AmbariLogin,
        find_cluster,
        split_url,
    )

    if source is not Source.AMBARI:
        raise Defect("a source that this command does not know")
    parts = split_url(url)
    secret = password_from(password, f"Password of {user} at {parts.hostname}: ")
    register_secret(secret)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        told = "without encryption; the password is sent in clear text"
        echo(f"warning: {parts.hostname} is queried {told}.", error=True)
    found = find_cluster(
        AmbariLogin(url, user, secret, ca_file),
        cluster,
        broker_port=broker_port,
        zookeeper_port=zookeeper_port,
    )
    for host in found.stopped:
        echo(f"warning: the broker on {host} is not started.", error=True)
    if ip and not found.broker_ips:
        raise ClusterError(
            "Ambari does not report the IP address of every broker.",
            where=f"Ambari {url}, cluster {cluster}",
            do="Leave --ip out, or let this user see the cluster's hosts.",
        )
    report = tables.Report(document(found, ip=ip), lines(found, alias, ip=ip), one_line=True)
    report.show(tables.Format.JSON if output_format is Format.JSON else tables.Format.TABLE)


def password_from(reference: str | None, prompt: str) -> str:
    """The password that ``env:NAME`` or ``file:PATH`` refers to; None: prompt on the terminal.

    Raises ConfigError, which never contains ``reference``: it may be the password itself.
    """
    if reference is None:
        if not sys.stdin.isatty():
            raise ConfigError(
                "there is no terminal to ask for the password.",
                where="--password",
                do="Write --password env:NAME or --password file:PATH.",
            )
        return getpass.getpass(prompt)
    kind, _, place = reference.partition(":")
    if kind == "env" and place in os.environ:
        return os.environ[place]
    if kind == "file":
        try:
            return Path(place).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the password's file cannot be read ({type(error).__name__}).",
                where="--password",
                do="Name a text file that this user may read.",
            ) from None
    raise ConfigError(
        "the environment has no such variable." if kind == "env" else "this is not a reference.",
        where="--password",
        do="Write env:NAME or file:PATH. Others can see a password on a command line.",
    )


def lines(found: Found, alias: str | None, *, ip: bool = False) -> list[str]:
    """Lines for a properties file; other facts are comments. ``ip``: use IP addresses."""
    prefix = f"{alias}." if alias else ""
    told = [f"# listeners={printable(found.listeners)}"] if found.listeners else []
    if found.advertised:
        told.append(f"# advertised.listeners={printable(found.advertised)}")
    told += [f"# kafka-env: {printable(line)}" for line in found.env]
    names, addresses = ",".join(found.brokers), ",".join(found.broker_ips)
    told.append(f"{prefix}bootstrap.servers={addresses if ip else names}")
    if addresses:
        told.append(f"# {'by name' if ip else 'by IP address'}: {names if ip else addresses}")
    keepers, by_address = found.zookeeper_connect, found.zookeeper_connect_ips
    if keepers:
        # MirrorMaker 2 has no such key; old MirrorMaker 1 files do.
        counts = by_address if ip and by_address else keepers
        told.append(f"{'# ' if alias else ''}zookeeper.connect={counts}")
        if by_address:
            told.append(
                f"# {'by name' if ip else 'by IP address'}: {keepers if ip else by_address}"
            )
    return told


def document(found: Found, *, ip: bool = False) -> dict[str, object]:
    """The document that ``--format json`` prints."""
    return {
        "bootstrap.servers": ",".join(found.broker_ips if ip else found.brokers),
        "zookeeper.connect": (ip and found.zookeeper_connect_ips) or found.zookeeper_connect,
        "brokers": {"names": list(found.brokers), "ips": list(found.broker_ips)},
        "zookeeper": {"names": list(found.zookeeper), "ips": list(found.zookeeper_ips)},
        "listeners": found.listeners,
        "advertised.listeners": found.advertised,
        "kafka-env": list(found.env),
        "stopped": list(found.stopped),
    }
