"""What a session leaves out; the JVM is stood in for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyspark.sql import types

from sparkmirror.data.spark.extensions import pass_values_quickly, without_ml

_ML = "jar:file:/spark/jars/spark-mllib_2.13-4.3.0.jar!/META-INF/services/x"
_OTHER = "jar:file:/spark/jars/geo.jar!/META-INF/services/x"


class _Urls:
    """Java's Enumeration."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = list(urls)

    def hasMoreElements(self) -> bool:
        return bool(self._urls)

    def nextElement(self) -> SimpleNamespace:
        url = self._urls.pop(0)
        return SimpleNamespace(toString=lambda: url)


class _Thread:
    def __init__(self, urls: list[str]) -> None:
        self.loader: Any = SimpleNamespace(getResources=lambda _: _Urls(urls))
        self.strategies: list[str] = []

    def getContextClassLoader(self) -> Any:
        return self.loader

    def setContextClassLoader(self, loader: Any) -> None:
        self.loader = loader


def _context(thread: _Thread, conf: dict[str, str]) -> Any:
    lang = SimpleNamespace(
        Thread=SimpleNamespace(currentThread=lambda: thread),
        ClassLoader=SimpleNamespace(getPlatformClassLoader=lambda: "platform"),
    )
    reflection = SimpleNamespace(
        ReflectionUtil=SimpleNamespace(setClassLoadingStrategy=thread.strategies.append),
        RootClassLoadingStrategy=lambda: "root",
        CurrentThreadClassLoadingStrategy=lambda: "current thread",
    )
    jvm = SimpleNamespace(
        java=SimpleNamespace(lang=lang), py4j=SimpleNamespace(reflection=reflection)
    )
    return SimpleNamespace(_jvm=jvm, _conf=conf)


@pytest.mark.parametrize(
    ("urls", "conf", "hidden"),
    [
        ([_ML], {}, True),
        ([_ML, _OTHER], {}, False),
        ([_ML], {"spark.sql.extensions": "a.B"}, False),
    ],
    ids=["Spark's alone", "another one", "named by the user"],
)
def test_only_spark_s_own_extension_is_left_out(
    urls: list[str], conf: dict[str, str], hidden: bool
) -> None:
    thread = _Thread(urls)
    loader = thread.loader
    with without_ml(_context(thread, conf)):
        assert (thread.loader == "platform") is hidden
    assert thread.loader is loader
    assert thread.strategies == (["root", "current thread"] if hidden else [])


def test_the_class_loader_is_back_after_an_error() -> None:
    thread = _Thread([_ML])
    loader = thread.loader
    with pytest.raises(ValueError), without_ml(_context(thread, {})):  # noqa: PT011
        raise ValueError
    assert (thread.loader, thread.strategies[-1]) == (loader, "current thread")


def test_nothing_is_loaded_to_see_that_a_value_is_not_numpys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark asks a module that loads pandas. Numpy's own values are still passed."""
    pass_values_quickly()
    pass_values_quickly()
    scalars, arrays = types.NumpyScalarConverter(), types.NumpyArrayConverter()
    assert scalars.can_convert(np.float32(1))
    assert arrays.can_convert(np.zeros(2))
    assert not arrays.can_convert(np.zeros((2, 2)))
    monkeypatch.setitem(sys.modules, "pyspark.testing.utils", None)
    with pytest.raises(ImportError):
        scalars.can_convert(np.float32(1))
    for value in ("local[1]", 1, 1.5, True, None, b"x", [1], {"a": 1}, object()):
        assert not scalars.can_convert(value)
        assert not arrays.can_convert(value)
