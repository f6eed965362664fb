"""Makes Spark's class archive: Spark runs a query without clusters, Java archives its classes.

The query is a mirror's in all that the JVM sees of it: Python data sources at both ends, Arrow rows
between them, a function in Python on the way. So the list of classes is that of a mirror.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from sparkmirror.cache import locked
from sparkmirror.data.coordination.sealed_options import new_key
from sparkmirror.data.rows.rows import rehearsal
from sparkmirror.data.rows.schema import SCHEMA
from sparkmirror.data.spark.class_archive import ClassArchive
from sparkmirror.data.spark.gateway import spark_home
from sparkmirror.data.spark.session import Spark
from sparkmirror.data.spark.temp_dir import TempDirectory
from sparkmirror.data.workers.spark_versions import check_installed
from sparkmirror.errors import MachineError
from sparkmirror.java import find_java
from sparkmirror.settings import MirrorSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["prepare"]

_FORMAT = "sparkmirror-rehearsal"
_QUERY_S_MAX = 300.0
_WAIT_S_MAX = 900.0
_POLL_S = 0.1


def prepare(say: Callable[[str], None]) -> ClassArchive:
    """Make the class archive unless it is there; returns it.

    ``say`` gets a line before each step that takes long. Several processes may call this at a time:
    one makes the archive, and the others wait for it. Raises `MachineError`.
    """
    check_installed(os.environ)
    home = spark_home()
    if home is not None and not (home / "jars").is_dir():
        raise MachineError(
            "There is no Spark: the directory jars is missing.",
            where=f"SPARK_HOME={home}" if os.environ.get("SPARK_HOME") else str(home),
            do="Unset SPARK_HOME, because PySpark brings a Spark of its own; or name the directory"
            " that has Spark's bin and jars.",
        )
    java = find_java()
    archive = ClassArchive.find(java)
    if archive is None:
        raise MachineError(
            "There is no place for Spark's class archive: this user may write neither to the"
            " virtual environment nor to a cache directory.",
            do="Set XDG_CACHE_HOME to a directory that you may write to, or let the owner of the"
            " environment run this command.",
        )
    if archive.made:
        return archive
    with locked(archive.path.with_suffix(".lock"), timeout_s=_WAIT_S_MAX):
        if not archive.made:
            scratch = TempDirectory.make()
            try:
                _make(archive, scratch.path, say)
            finally:
                scratch.close()
    return archive


def _make(archive: ClassArchive, directory: Path, say: Callable[[str], None]) -> None:
    class_list = directory / "classes.list"
    spark = Spark(
        MirrorSettings(flows=(), clusters=()),
        master="local[2]",
        spark_conf={},
        work_dir=directory / "work",
        key=new_key(),
        record_classes=class_list,
    )
    say("running Spark to see which classes a mirror loads …")
    try:
        session = spark.open()
        jvm: Any = session.sparkContext._jvm
        class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
        _rehearse(session, directory)
    except MachineError:
        raise
    except Exception as error:
        raise MachineError(
            f"Spark cannot run a query ({type(error).__name__}: {error}).",
            where=str(archive.java.java),
            do="The end of Spark's log is below.\n" + _end_of(spark.log_path),
        ) from error
    finally:
        spark.close()
    say("Java writes the archive …")
    archive.make(class_list, class_path)


def _rehearse(session: SparkSession, directory: Path) -> None:
    """Run one epoch of a query like a mirror's."""
    session.dataSource.register(_Rehearsal)
    rows = session.readStream.format(_FORMAT).load().mapInArrow(_same, SCHEMA)
    query = (
        rows.writeStream.format(_FORMAT)
        .option("checkpointLocation", f"file://{directory / 'checkpoint'}")
        .start()
    )
    try:
        deadline = time.monotonic() + _QUERY_S_MAX
        while query.lastProgress is None and query.isActive:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no row came in {_QUERY_S_MAX:.0f} s")
            time.sleep(_POLL_S)
        error = query.exception()
        if error is not None:
            raise error
    finally:
        query.stop()


def _end_of(log: Path) -> str:
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
    except OSError:
        return ""


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


class _Rehearsal(DataSource):
    """Both ends of the query: two slots that have nothing to mirror."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
        return _Reader()

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _Writer()


class _Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"epoch": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802
        return {"epoch": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(slot) for slot in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rehearsal()


class _Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
