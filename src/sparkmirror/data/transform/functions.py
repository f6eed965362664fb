"""SQL functions for every transform: `mask_json`, `hash_json`, `drop_json` and `header`.

They run within Spark's JVM, as part of the one projection: a Python function would send each record
through one more process. The first three are a scanner of bytes in Java (``JsonFunction.java``),
which leaves all bytes but those of the field; Spark's own functions write a document anew and
change its numbers. ``RecordFunctions.java`` makes Spark's expressions from calls. Both files are
compiled at the start with the compiler that Spark brings for its generated code, and travel to
executors as a jar.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkmirror.errors import ConfigError
from sparkmirror.model import FlowSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NAMES", "register_functions"]

NAMES = ("mask_json", "hash_json", "drop_json", "header")
"""The functions' names in SQL."""

# In this order: each may use those before it.
_SOURCES = ("JsonFunction", "RecordFunctions")
_PACKAGE = "sparkmirror"
_CALL = re.compile(rf"\b({'|'.join(NAMES)})`?\s*\(", re.IGNORECASE)


class _Classes:
    """The compiled classes of one Spark application; the newest one counts."""

    def __init__(self, spark: SparkSession) -> None:
        self.application = spark.sparkContext.applicationId
        self.loader: Any = None
        jvm: Any = spark._jvm
        made: dict[str, bytes] = {}
        for name in _SOURCES:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(
                self.loader or jvm.java.lang.Thread.currentThread().getContextClassLoader()
            )
            compiler.cook(Path(__file__).with_name(f"{name}.java").read_text(encoding="utf-8"))
            made |= {each: bytes(code) for each, code in compiler.getBytecodes().items()}
            self.loader = compiler.getClassLoader()
        # Spark removes that directory when it ends.
        directory = jvm.org.apache.spark.util.Utils.createTempDir()
        jar = Path(str(directory)) / "sparkmirror-functions.jar"
        with zipfile.ZipFile(jar, "w") as archive:
            for each, code in made.items():
                archive.writestr(f"{each.replace('.', '/')}.class", code)
        context: Any = spark.sparkContext
        context._jsc.addJar(str(jar))

    def builder(self, spark: SparkSession, name: str, salt: bytes | None) -> Any:
        """What makes an expression from a call of the function ``name``."""
        jvm: Any = spark._jvm
        gateway: Any = spark.sparkContext._gateway
        arguments = gateway.new_array(jvm.java.lang.Object, 2)
        arguments[0], arguments[1] = name, salt
        kind = self.loader.loadClass(f"{_PACKAGE}.RecordFunctions")
        return kind.getConstructors()[0].newInstance(arguments)


_compiled: _Classes | None = None


def register_functions(session: SparkSession, flow: FlowSettings, *, always: bool = False) -> None:
    """Register the functions in ``session`` if the SQL of ``flow`` calls one, or ``always``.

    Raises ConfigError if `hash_json` is called without a salt.
    """
    global _compiled  # noqa: PLW0603  (compiling takes half a second, and flows share the classes)
    called = set()
    for one in flow.transforms:
        for option, sql in (("where", one.where), ("select", one.select)):
            found = {name.lower() for name in _CALL.findall(sql)}
            called |= found
            if "hash_json" in found and not flow.hash_salt:
                raise ConfigError(
                    f"the transform {one.name} cannot be used: hash_json needs a salt. Without "
                    "one, whoever has the hashes can try all card numbers.",
                    where=one.place(option),
                    do=f"Set {flow.name}.sparkmirror.hash.salt to the output of openssl rand "
                    "-hex 32, best through a config provider.",
                )
    if not called and not always:
        return
    if _compiled is None or _compiled.application != session.sparkContext.applicationId:
        _compiled = _Classes(session)
    state: Any = session._jsparkSession.sessionState()
    salt = flow.hash_salt.encode() if flow.hash_salt else None
    for name in NAMES:
        state.functionRegistry().createOrReplaceTempFunction(
            name, _compiled.builder(session, name, salt), "scala_udf"
        )
