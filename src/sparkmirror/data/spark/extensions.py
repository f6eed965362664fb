"""Leaves out what takes Spark longer to load than all else of a session, and no mirror needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["pass_values_quickly", "without_ml"]

_PROVIDERS = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
_ML_LIBRARY = "/spark-mllib_"

_NUMPY = "numpy"
_patched: set[type] = set()


def pass_values_quickly() -> None:
    """Let PySpark ask only of numpy's values whether they are numpy's.

    It asks of each value that goes to the JVM, and loads pandas and pyarrow for the first one: half
    a second of processor time.
    """
    from pyspark.sql import types  # noqa: PLC0415  (takes a third of a second)

    kinds: tuple[Any, ...] = types.NumpyScalarConverter, types.NumpyArrayConverter
    for kind in kinds:
        if kind not in _patched:
            kind.can_convert = _of_numpys(kind.can_convert)
            _patched.add(kind)


def _of_numpys(asks: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def can_convert(converter: Any, value: Any) -> bool:
        known = any(one.__module__ == _NUMPY for one in type(value).__mro__)
        return known and asks(converter, value)

    return can_convert


@contextmanager
def without_ml(context: SparkContext) -> Iterator[None]:
    """Meanwhile, a session that this thread makes does not find the library's extension.

    For two SQL functions it starts Scala's reflection, which takes longer than the context and all
    else of the session. Spark looks for such extensions with the thread's class loader. Any other
    one that is there, or that the user names, counts: then nothing is left out.
    """
    jvm: Any = context._jvm
    thread = jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    found = list(_places(loader))
    if context._conf.get("spark.sql.extensions") or not all(_ML_LIBRARY in one for one in found):
        yield
        return
    # Py4J looks for classes with that loader, too, unless it is told otherwise.
    py4j = jvm.py4j.reflection
    py4j.ReflectionUtil.setClassLoadingStrategy(py4j.RootClassLoadingStrategy())
    thread.setContextClassLoader(jvm.java.lang.ClassLoader.getPlatformClassLoader())
    try:
        yield
    finally:
        thread.setContextClassLoader(loader)
        py4j.ReflectionUtil.setClassLoadingStrategy(py4j.CurrentThreadClassLoadingStrategy())


def _places(loader: Any) -> Iterator[str]:
    """The files that name such extensions, as URLs."""
    found = loader.getResources(_PROVIDERS)
    while found.hasMoreElements():
        yield found.nextElement().toString()
