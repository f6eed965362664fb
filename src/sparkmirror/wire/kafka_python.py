"""kafka-python's package without its clients, until somebody asks for them.

``import kafka.protocol`` first runs the package ``kafka``. That loads a consumer, a producer and an
admin client, which nobody here uses: a third of what a command like ``topics`` takes to start.
`skip_clients` puts the package in its place, but runs it only when a name of it is looked for. So
other code in this process, such as a rebalance listener, finds all of kafka-python.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["skip_clients"]

_lock = threading.RLock()
_running = False  # it imports parts of itself, which look for its names


class _Package(ModuleType):
    """The package ``kafka``, which runs when a name is looked for that it has only then."""

    def __getattr__(self, name: str) -> Any:
        global _running  # noqa: PLW0603  (there is one such package)
        with _lock:
            loader = self.__spec__.loader if self.__spec__ is not None else None
            if type(self) is _Package and loader is not None and not _running:
                _running = True
                try:
                    loader.exec_module(self)
                finally:
                    _running = False
                self.__class__ = ModuleType  # type: ignore[assignment]
        return object.__getattribute__(self, name)


def skip_clients() -> None:
    """Import ``kafka`` without what it imports, unless it is there already. Idempotent."""
    if "kafka" in sys.modules:
        return
    spec = find_spec("kafka")
    if spec is None:
        return  # whoever imports a part of it says so
    package = module_from_spec(spec)
    package.__class__ = _Package
    sys.modules["kafka"] = package
