"""Starts Kafka's programs: Java, class path, flags, and a shared class archive.

Loading and verifying 6,000 classes takes most of a broker's start. A class archive (Java's "dynamic
CDS") halves this time: the first broker of a version that ends normally writes one to the cache,
and all later ones use it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparkmirror.cache import cache_directory, claim_part
from sparkmirror.errors import MachineError
from sparkmirror.java import ARCHIVES_IN_PLACE, QUIET_ARCHIVES, JavaHome, find_java
from sparkmirror.testing.maven import Fetching, resolve

__all__ = [
    "KAFKA_VERSION",
    "KAFKA_VERSIONS",
    "QUICK_JVM",
    "SERVER_JVM",
    "KafkaRuntime",
    "kafka_jars",
    "tools_version",
]

KAFKA_VERSION = "4.3.0"
"""The default version of brokers."""

KAFKA_VERSIONS = (KAFKA_VERSION, "4.4.0")
"""The versions of brokers that the demo supports."""

# Releases whose kafka-tools jar is not in the public repository, and whose tools to use instead.
_TOOLS_VERSIONS = {"4.4.0": KAFKA_VERSION}

# A JVM that counts for tools such as jstat wakes up twenty times a second for it.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""JVM flags for a quick start and a small footprint: tests and the demo."""

SERVER_JVM = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""JVM flags for steady throughput: benchmarks."""

_RECORDING_S_MAX = 3_600.0  # an older mark is from a process that was killed

# Jars that these brokers never use; excluding them saves a quarter of the first download.
_UNNEEDED = (
    *("scala-reflect", "jackson-dataformat-yaml", "jose4j"),
    *("commons-beanutils", "commons-collections", "commons-digester", "commons-logging"),
    *("log4j-slf4j-impl", "slf4j-log4j12", "slf4j-reload4j"),
)


def kafka_jars(
    version: str = KAFKA_VERSION,
    *,
    progress: Callable[[Fetching], None] | None = None,
    java: JavaHome | None = None,
) -> tuple[Path, ...]:
    """The class path of a Kafka broker.

    It includes Kafka's command-line tools if they have the same version (`tools_version`). Raises
    MachineError, see ``maven.resolve``.
    """
    major, minor, *_ = (int(part) for part in version.split("."))
    scala = "2.13" if (major, minor) >= (2, 4) else "2.12"  # the Scala version it is published for
    coordinates = [f"org.apache.kafka:kafka_{scala}:{version}", "org.slf4j:slf4j-simple:1.7.36"]
    if (major, minor) < (2, 4):
        # Their own version, 3.4, cannot parse addresses in the format of Java 14 and later.
        coordinates.append("org.apache.zookeeper:zookeeper:3.5.9")
    if tools_version(version) == version:
        # Only this jar: it depends on Kafka Connect and its web server, the console tools do not.
        coordinates.append(f"org.apache.kafka:kafka-tools:{version}@jar")
    return resolve(*coordinates, exclude=_UNNEEDED, progress=progress, java=java)


def tools_version(version: str) -> str:
    """The release whose command-line tools to use for ``version``; its own if available."""
    return _TOOLS_VERSIONS.get(version, version)


@dataclass(frozen=True, slots=True)
class KafkaRuntime:
    """One version of Kafka on one Java, ready to be started.

    ``archive``: the shared class archive, which may not exist yet. ``further``: jars after the
    others on the class path.
    """

    java: JavaHome
    jars: tuple[Path, ...]
    archive: Path
    further: tuple[Path, ...] = ()

    @classmethod
    def find(
        cls,
        version: str = KAFKA_VERSION,
        *,
        further: Sequence[str] = (),
        progress: Callable[[Fetching], None] | None = None,
    ) -> Self:
        """Find Java and download the jars. Raises MachineError if either fails.

        ``further``: coordinates for ``maven.resolve``.
        """
        java = find_java()
        jars = kafka_jars(version, progress=progress, java=java)
        text = "\n".join([str(java.path), java.version, *map(str, jars)])
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        archive = cache_directory("classes") / f"kafka-{version}-{key}.jsa"
        return cls(java, jars, archive, resolve(*further, java=java) if further else ())

    def command(
        self,
        main_class: str,
        *arguments: str,
        heap: str,
        flags: Sequence[str] = QUICK_JVM,
        log_level: str = "warn",
        record_archive: Path | None = None,
    ) -> list[str]:
        """The command line that runs ``main_class``.

        ``log_level``: the level of the program's log on stderr. ``record_archive``: where to write
        a class archive when the program ends.
        """
        shared = []
        if record_archive is not None:
            shared = [f"-XX:ArchiveClassesAtExit={record_archive}"]
        elif self.archive.is_file():
            shared = [f"-XX:SharedArchiveFile={self.archive}"]
        return [
            str(self.java.java),
            f"-Xmx{heap}",
            *flags,
            "-Xshare:auto",  # an archive that does not match is ignored
            *QUIET_ARCHIVES,
            *ARCHIVES_IN_PLACE,
            *shared,
            "-Djava.awt.headless=true",
            f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-Dorg.slf4j.simpleLogger.showThreadName=false",
            "-cp",
            os.pathsep.join(map(str, (*self.jars, *self.further))),
            main_class,
            *arguments,
        ]

    def archive_to_record(self) -> Path | None:
        """Where a broker shall write the archive at its end; None if it need not.

        Only one broker at a time records, because writing takes seconds of processor time. Raises
        MachineError if the cache cannot be written.
        """
        # An archive matches every class path that begins with its own, and no shorter one.
        if self.archive.is_file() or self.further:
            return None
        try:
            return claim_part(self.archive, stale_s=_RECORDING_S_MAX)
        except OSError as error:
            raise MachineError(
                f"The class archive cannot be written ({error.strerror}).",
                where=str(self.archive.with_suffix(".part")),
                do="Set XDG_CACHE_HOME to a directory that you may write to.",
            ) from error

    def keep_archive(self, recorded: Path, *, complete: bool) -> None:
        """Move a recorded archive to its place, or remove it if it is not ``complete``."""
        # If the file is empty, it is only our mark: this Java cannot write archives.
        if complete and recorded.is_file() and recorded.stat().st_size > 0:
            recorded.replace(self.archive)
        else:
            recorded.unlink(missing_ok=True)
