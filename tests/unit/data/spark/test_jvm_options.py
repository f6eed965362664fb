"""What Spark's JVM and its Python workers get for the flows of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.data.spark.session import _foreign_code, _spark_settings
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings, RecordSettings
from sparkmirror.transform_settings import TransformSettings

_CLIENT = ClusterClient("A", ("localhost:1",), "test")


@pytest.mark.parametrize(
    ("transforms", "both"),
    [
        ((), False),
        ((TransformSettings("clean", ("orders",), "true"),), True),
        ((TransformSettings("clean", ("orders",), python="module:function"),), True),
        ((TransformSettings("clean", ("orders",), handler="module:name"),), False),
    ],
    ids=["none", "SQL", "DataFrame", "handler"],
)
def test_what_flows_compute_decides_which_compilers_there_are(
    transforms: tuple[TransformSettings, ...], both: bool, tmp_path: Path
) -> None:
    plain = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT)
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=transforms)
    conf = _spark_settings(
        MirrorSettings((plain, flow), ("A", "B")),
        master="local[*]",
        work_dir=tmp_path,
        scratch=tmp_path,
        cores=2,
    )
    assert ("-XX:TieredStopAtLevel=1" in conf["spark.driver.extraJavaOptions"]) is not both
    # What only carries rows needs no code of its own.
    assert (conf.get("spark.sql.codegen.factoryMode") == "NO_CODEGEN") is not both
    assert (conf.get("spark.sql.codegen.wholeStage") == "false") is not both


def test_what_users_set_for_other_applications_is_not_the_mirrors(tmp_path: Path) -> None:
    """Its JVM is started as a shell, for which Spark would draw a bar of progress into the log.

    Kryo refuses what tasks return, if a spark-defaults.conf wants its classes registered.
    """
    conf = _spark_settings(
        MirrorSettings((FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT),), ("A", "B")),
        master="local[*]",
        work_dir=tmp_path,
        scratch=tmp_path,
        cores=2,
    )
    assert conf["spark.ui.showConsoleProgress"] == "false"
    assert conf["spark.serializer"] == "org.apache.spark.serializer.JavaSerializer"


def test_a_jvm_without_memory_ends(tmp_path: Path) -> None:
    """Spark would go on without the thread that asked for it, and a query could stand still."""
    conf = _spark_settings(
        MirrorSettings((FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT),), ("A", "B")),
        master="local[*]",
        work_dir=tmp_path,
        scratch=tmp_path,
        cores=2,
    )
    assert "-XX:+ExitOnOutOfMemoryError" in conf["spark.driver.extraJavaOptions"].split()


@pytest.mark.parametrize(
    ("flow", "foreign"),
    [
        (FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT), False),
        (
            FlowSettings(
                *(_CLIENT, _CLIENT, _CLIENT, _CLIENT),
                transforms=(TransformSettings("clean", ("orders",), python="module:function"),),
            ),
            True,
        ),
        (
            FlowSettings(
                *(_CLIENT, _CLIENT, _CLIENT, _CLIENT), records=RecordSettings(handler="module:name")
            ),
            True,
        ),
    ],
    ids=["copies", "transforms", "message handler"],
)
def test_workers_load_pandas_only_where_code_of_users_may_need_it(
    flow: FlowSettings, foreign: bool
) -> None:
    plain = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT)
    assert _foreign_code(MirrorSettings((plain, flow), ("A", "B"))) is foreign
