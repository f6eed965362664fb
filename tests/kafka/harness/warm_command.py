"""``python warm_command.py DIRECTORY COMMAND ARGUMENTS``: a command with a JVM that runs already.

See `warm_spark`. All but the JVM is as with the installed command: this process, its Spark
application, its Python workers.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from pathlib import Path

_MAINS = {
    "sparkmirror": "sparkmirror.cli.main",
    "connect-mirror-maker": "sparkmirror.cli.connect_mirror_maker",
    "kafka-mirror-maker": "sparkmirror.cli.kafka_mirror_maker",
}


def _main(directory: Path, command: str, arguments: list[str]) -> int:
    port, secret, key = (directory / "connection").read_text(encoding="utf-8").split()
    # PySpark's own way to use a JVM that is there; ``spark-submit program.py`` sets both.
    os.environ["PYSPARK_GATEWAY_PORT"] = port
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    # The Python processes that the JVM starts have its environment, in which the key is. Modules
    # that make one take this function when they are loaded, later than this.
    sealed = importlib.import_module("sparkmirror.data.coordination.sealed_options")
    sealed.new_key = lambda: key
    spark = importlib.import_module("sparkmirror.data.spark.session")
    make_launcher = spark._python_launcher

    def launcher(work_dir: Path, prefork_dir: Path) -> str:
        """The JVM's ``PYSPARK_PYTHON`` cannot change: it leads to this run's, with the path where
        this process finds modules. A JVM that this process starts would have passed that on.
        """
        place, new = directory / "python", directory / "python.new"
        modules = shlex.quote(os.environ.get("PYTHONPATH", ""))
        new.write_text(
            "#!/bin/sh\n"
            f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{modules}\n'
            f'exec {shlex.quote(make_launcher(work_dir, prefork_dir))} "$@"\n',
            encoding="utf-8",
        )
        new.chmod(0o700)
        new.replace(place)
        return str(place)

    spark._python_launcher = launcher
    sys.argv = [command, *arguments]
    code: int = importlib.import_module(_MAINS[command]).main()
    context = sys.modules.get("pyspark.core.context")
    if context is None or context.SparkContext._active_spark_context is None:
        (directory / "in-use").unlink()
    return code


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
