"""A shared class archive for Spark's JVM: loading its classes is most of its start.

In the first run of a Spark and Java version, the JVM records which classes it loads. Once the
mirror runs, Java turns that list into an archive ("static CDS") in the cache. It does so beside the
mirror, at the lowest priority, and only if the machine has a processor to spare. Later runs map the
archive. The JVM ignores an archive that does not fit (another Java, other jars); the key in its
name makes that rare.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkmirror.cache import cache_directory, claim_part
from sparkmirror.errors import MachineError
from sparkmirror.java import QUIET_ARCHIVES, JavaHome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ClassArchive", "Recorder", "class_path"]

log = logging.getLogger(__name__)

# By then the mirror has loaded what it needs, and nobody waits for its first record any more.
_SETTLED_S = 30.0
_DUMP_S_MAX = 300.0
_POLL_S = 0.2
_BUSY_POLL_S = 10.0
_NICE = 19


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one Spark on one Java; ``path`` need not exist yet."""

    java: JavaHome
    path: Path

    @classmethod
    def find(cls, java: JavaHome) -> ClassArchive | None:
        """The archive for the installed PySpark; None if there is no cache directory."""
        try:
            cache, jars = cache_directory("classes"), _jars()
            entries = sorted(
                (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
                for entry in os.scandir(jars)
            )
        except (MachineError, OSError) as error:
            log.debug("no class archive: %s", error)
            return None
        text = repr((str(java.path), java.version, str(jars), entries))
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        return cls(java, cache / f"spark-{version('pyspark')}-{key}.jsa")

    def options(self, class_list: Path) -> list[str]:
        """JVM options that use the archive, or record in ``class_list`` what belongs into it."""
        if not self.path.is_file():
            return [f"-XX:DumpLoadedClassList={class_list}"]
        if self.path.stat().st_size == 0:  # our own mark: this Java cannot write an archive
            return []
        return ["-Xshare:auto", *QUIET_ARCHIVES, f"-XX:SharedArchiveFile={self.path}"]


class Recorder:
    """Creates the archive beside a run, unless another run does; ``close`` stops unfinished work.

    ``class_path`` returns that of the JVM which wrote ``class_list``; it is called when needed.
    """

    def __init__(
        self,
        archive: ClassArchive,
        class_list: Path,
        class_path: Callable[[], str],
        *,
        after_s: float = _SETTLED_S,
        busy: Callable[[], bool] | None = None,
    ) -> None:
        self._busy = busy or _machine_is_busy
        self._archive = archive
        self._class_list = class_list
        self._class_path = class_path
        self._after_s = after_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkmirror-classes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; leave no process and no partial archive."""
        self._closing.set()
        self._thread.join(2)
        self._class_list.unlink(missing_ok=True)

    def _run(self) -> None:
        wait_s = self._after_s
        while not self._closing.wait(wait_s):
            # At the lowest priority, it would not be ready in time, and each run would start again.
            if not self._busy():
                break
            wait_s = _BUSY_POLL_S
        else:
            return
        try:
            part = claim_part(self._archive.path, stale_s=_DUMP_S_MAX)
        except OSError as error:
            log.debug("no class archive is made: %s", error)
            return
        if part is None:
            return
        try:
            self._make(part)
        except Exception as error:  # the mirror also runs without it
            log.debug("the class archive was not made: %s", error)
        finally:
            part.unlink(missing_ok=True)
            self._class_list.unlink(missing_ok=True)

    def _make(self, part: Path) -> None:
        class_path = self._class_path()
        wanted = part.with_suffix(".list")
        # The JVM continues to write, so the last line may be incomplete.
        text = self._class_list.read_text(encoding="utf-8", errors="replace")
        wanted.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
        made = part.with_suffix(".made")
        command = [
            str(self._archive.java.java),
            *("-Xshare:dump", "-Xmx1g", "-Xlog:disable", "-Xlog:all=off"),
            *(f"-XX:SharedClassListFile={wanted}", f"-XX:SharedArchiveFile={made}"),
            *("-cp", class_path),
        ]
        try:
            code = self._dump(command)
            if code is None:
                return  # the run ends, or Java took too long: another run will create it
            if code == 0 and made.is_file():
                made.replace(self._archive.path)
            else:
                self._archive.path.touch()
        finally:
            for path in (wanted, made):
                path.unlink(missing_ok=True)

    def _dump(self, command: list[str]) -> int | None:
        process = subprocess.Popen(  # noqa: S603  (an argument list, no shell)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        deadline = time.monotonic() + _DUMP_S_MAX
        while process.poll() is None:
            if self._closing.wait(_POLL_S) or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return None
        return process.returncode


def _machine_is_busy() -> bool:
    """Whether, over the last minute, more tasks wanted to run than there are processors."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def class_path(spark: SparkSession) -> str:
    """The class path of the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("java.class.path"))


def _jars() -> Path:
    """Where Spark's classes are, found as its own scripts find them."""
    home, spec = os.environ.get("SPARK_HOME"), find_spec("pyspark")
    if home or spec is None or spec.origin is None:
        return Path(home or "") / "jars"
    return Path(spec.origin).parent / "jars"
