"""A shared class archive for Spark's JVM: loading its classes is most of its start.

Java writes the archive once ("static CDS"), from a list of the classes that a JVM has loaded.
`data.spark.preparation` makes it when ``sparkmirror prepare`` asks for it, never a run: that would
take half a minute of processor time beside a mirror, and a short run would end before. Every start
maps the archive. The JVM ignores one that does not fit (another Java, other jars); the key in its
name makes that rare.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sparkmirror.cache import cache_directory
from sparkmirror.data.spark.gateway import spark_home
from sparkmirror.errors import MachineError
from sparkmirror.java import ARCHIVES_IN_PLACE, QUIET_ARCHIVES, JavaHome

__all__ = ["ClassArchive"]

log = logging.getLogger(__name__)

_DUMP_S_MAX = 600.0
_SAID_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one Spark on one Java; ``path`` need not exist yet."""

    java: JavaHome
    path: Path

    @classmethod
    def find(cls, java: JavaHome) -> ClassArchive | None:
        """The archive for the installed PySpark, or the place where it belongs.

        It is in the virtual environment or in this user's cache directory (`_directories`). None if
        this user may write to neither of them and there is no archive.
        """
        try:
            name = _name(java)
        except OSError as error:
            log.debug("no class archive: %s", error)
            return None
        directories = list(_directories())
        for directory in directories:
            if (directory / name).is_file():
                return cls(java, directory / name)
        for directory in directories:
            if _writable(directory):
                return cls(java, directory / name)
        return None

    @property
    def made(self) -> bool:
        """Whether the archive is there."""
        return self.path.is_file()

    def options(self) -> list[str]:
        """JVM options that use the archive; none before it is made."""
        if not self.made:
            return []
        shared = f"-XX:SharedArchiveFile={self.path}"
        return ["-Xshare:auto", *QUIET_ARCHIVES, *ARCHIVES_IN_PLACE, shared]

    @staticmethod
    def recording(class_list: Path) -> list[str]:
        """JVM options that write to ``class_list`` what belongs into an archive."""
        return [f"-XX:DumpLoadedClassList={class_list}"]

    def make(self, class_list: Path, class_path: str) -> None:
        """Let Java write the archive of the classes in ``class_list``, found on ``class_path``.

        It appears complete or not at all. One caller at a time. Raises `MachineError`.
        """
        unfinished = f".{self.path.stem}-"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for left in self.path.parent.glob(f"{unfinished}*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=unfinished, dir=self.path.parent) as part:
                made = Path(part) / self.path.name
                self._dump(
                    [
                        str(self.java.java),
                        *("-Xshare:dump", "-Xmx1g", "-Xlog:disable", "-Xlog:all=error"),
                        *(f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={made}"),
                        *("-cp", class_path),
                    ],
                    made,
                )
                # Other users of the same environment map it, too.
                made.chmod(0o644)
                made.replace(self.path)
        except OSError as error:
            raise MachineError(
                f"The class archive cannot be written ({error.strerror or error}).",
                where=str(self.path.parent),
                do="Let this user write there, or free some 200 MB on that disk.",
            ) from error

    def _dump(self, command: list[str], made: Path) -> None:
        try:
            done = subprocess.run(  # noqa: S603  (an argument list, no shell)
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_DUMP_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise self._refused(f"it took longer than {_DUMP_S_MAX:.0f} s") from error
        if done.returncode != 0 or not made.is_file():
            said = " ".join((done.stdout + done.stderr).split())[-_SAID_CHARACTERS_MAX:]
            raise self._refused(f"exit code {done.returncode}: {said or 'it says nothing'}")

    def _refused(self, why: str) -> MachineError:
        return MachineError(
            f"Java {self.java.version} does not write a class archive ({why}).",
            where=str(self.java.java),
            do="The mirror runs without one; each start takes some seconds longer. Use OpenJDK"
            f" 17 or newer ({self.java.source} names this one), and see that 1 GB of memory is"
            " free.",
        )


def _name(java: JavaHome) -> str:
    """The archive's file name, with a key of all that it depends on. Raises ``OSError``."""
    jars = (spark_home() or Path()) / "jars"
    # Java compares sizes and whole seconds. Finer times do not survive a container image's layers.
    entries = sorted(
        (entry.name, entry.stat().st_size, int(entry.stat().st_mtime)) for entry in os.scandir(jars)
    )
    text = repr((str(java.path), java.version, str(jars), entries))
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"spark-{version('pyspark')}-{key}.jsa"


def _directories() -> Iterator[Path]:
    """Where archives are, the first choice first.

    In a virtual environment all of its users share one, and it goes where the environment goes: to
    a container, or away. Whoever may write there may also write the code that runs.
    """
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix) / "share" / "sparkmirror" / "classes"
    try:
        yield cache_directory("classes")
    except MachineError as error:
        log.debug("no class archive in a cache directory: %s", error)


def _writable(directory: Path) -> bool:
    """Whether this user may write to ``directory``, which need not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return os.access(directory, os.W_OK | os.X_OK)
