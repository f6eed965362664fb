"""SQL functions for every transform: `mask_json`, `hash_json`, `drop_json`, `header` and `lookup`.

They run within Spark's JVM, as part of the one projection: a Python function would send each record
through one more process. The first three are a scanner of bytes in Java (``JsonFunction.java``),
which leaves all bytes but those of the field; Spark's own functions write a document anew and
change its numbers. `lookup` asks a static table (`data.transform.tables`).
``RecordFunctions.java`` makes Spark's expressions from calls. The files are
compiled at the start with the compiler that Spark brings for its generated code, and travel to
executors as a jar. So are `decode_registry` and `encode_registry` (`data.transform.registry`), if
the flow has a schema registry. Users add Java and SQL functions of their own (``functions``).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkmirror.config.callables import USERS_ERRORS, load_callable
from sparkmirror.data.transform.registry import register
from sparkmirror.errors import ConfigError
from sparkmirror.settings import FlowSettings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TRIED", "class_loader", "python_functions", "register_functions"]

_NAMES = ("mask_json", "hash_json", "drop_json", "header", "lookup")

# In this order: each may use those before it.
_SOURCES = tuple(
    Path(__file__).parent / "java" / f"{name}.java"
    for name in ("JsonText", "JsonFunction", "Lookup", "Table", "RecordFunctions")
)
_CALL = re.compile(rf"\b({'|'.join(_NAMES)})`?\s*\(", re.IGNORECASE)
# They need nothing of those above.
_FIELD_SOURCES = tuple(
    Path(__file__).parent / "java" / f"{name}.java"
    for name in ("JsonText", "JsonField", "FieldRule")
)
TRIED = (Path(__file__).parent / "java" / "TryRecord.java",)
"""What makes a null of a record on which the SQL fails."""

_FIELD_CALL = re.compile(r"\bget_json_object`?\s*\(", re.IGNORECASE)


@lru_cache(maxsize=4)
def class_loader(context: SparkContext, sources: tuple[Path, ...] = _SOURCES) -> Any:
    """Compile Java files for an application; its executors get the classes as a jar.

    Ours take half a second. All flows of the application share the classes. Other ``sources`` may
    use ours.
    """
    jvm: Any = context._jvm
    if sources in (_SOURCES, _FIELD_SOURCES, TRIED):
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    else:
        loader = class_loader(context)
    made: dict[str, bytes] = {}
    for source in sources:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(source.read_text(encoding="utf-8"))
        made |= {each: bytes(code) for each, code in compiler.getBytecodes().items()}
        loader = compiler.getClassLoader()
    # Spark removes that directory when it ends.
    directory = Path(str(jvm.org.apache.spark.util.Utils.createTempDir()))
    jar = directory / f"sparkmirror-{sources[-1].stem}.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for each, code in made.items():
            archive.writestr(f"{each.replace('.', '/')}.class", code)
    java_context: Any = context._jsc
    java_context.addJar(str(jar))
    return loader


def _builder(context: SparkContext, name: str, salt: bytes | None, tables: Any) -> Any:
    """What makes an expression from a call of our function ``name``."""
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    arguments = gateway.new_array(jvm.java.lang.Object, 3)
    arguments[0], arguments[1], arguments[2] = name, salt, tables
    kind = class_loader(context).loadClass("sparkmirror.RecordFunctions")
    return kind.getConstructors()[0].newInstance(arguments)


def register_functions(session: SparkSession, flow: FlowSettings, tables: Any) -> None:
    """Register in ``session`` what the SQL of ``flow`` may call. ``tables``: Java's map of them.

    Our functions, if it calls one, and those of the users' ``functions``, which may use ours.
    Raises ConfigError if one of the users' cannot be imported or fails, if `hash_json` has no salt,
    or if `decode_registry` has no registry that answers.
    """
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
    # Functions of the users may call ours; what they call is not known here.
    if called or any(one.functions or one.python for one in flow.transforms):
        state: Any = session._jsparkSession.sessionState()
        salt = flow.hash_salt.encode() if flow.hash_salt else None
        for name in _NAMES:
            state.functionRegistry().createOrReplaceTempFunction(
                name, _builder(session.sparkContext, name, salt, tables), "scala_udf"
            )
    _register_fields(session, flow)
    if register.calls_registry(flow):
        loader = class_loader(session.sparkContext, register.SOURCES)
        register.register_registry(session, flow, loader)
    _register_own(session, flow)


def _register_fields(session: SparkSession, flow: FlowSettings) -> None:
    """Let Spark's optimizer replace `get_json_object` by the same with less work."""
    called = any(_FIELD_CALL.search(f"{one.where} {one.select}") for one in flow.transforms)
    if not called and not any(one.functions or one.python for one in flow.transforms):
        return
    jvm: Any = session.sparkContext._jvm
    rule = class_loader(session.sparkContext, _FIELD_SOURCES).loadClass("sparkmirror.FieldRule")
    made = rule.getConstructors()[0].newInstance(None)
    rules = jvm.PythonUtils.toSeq(jvm.java.util.List.of(made))
    java_session: Any = session._jsparkSession
    getattr(java_session.experimental(), "extraOptimizations_$eq")(rules)


# -- the user's own --------------------------------------------------------------------------------


def _register_own(session: SparkSession, flow: FlowSettings) -> None:
    done: set[str] = set()
    for one in flow.transforms:
        place = one.place("functions")
        for name in one.functions:
            if name in done:
                continue  # transforms of one flow share its session
            done.add(name)
            register = load_callable(name, None, where=place)
            try:
                register(session)
            except USERS_ERRORS as error:
                raise ConfigError(
                    f"the transform {one.name} cannot be used: {name} failed "
                    f"({type(error).__name__}: {_first_line(error)}).",
                    where=place,
                    do="It is called with the flow's Spark session, and registers functions there.",
                ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def python_functions(frame: DataFrame) -> Iterator[str]:
    """The names of the Python functions that ``frame``'s projections call."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    waiting, plans = [], [plan]
    while plans:
        node = plans.pop()
        waiting += _listed(node.expressions())
        plans += _listed(node.children())
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName().startswith("Python"):
            yield str(node.name())
        waiting += _listed(node.children())


def _listed(values: Any) -> list[Any]:
    return [values.apply(index) for index in range(values.size())]
