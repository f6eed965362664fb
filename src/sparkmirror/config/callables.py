"""Loads Python callables of the user that options and keys name as ``module:name``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from sparkmirror.errors import ConfigError

__all__ = ["USERS_ERRORS", "load_callable", "load_once"]

USERS_ERRORS = (Exception, SystemExit)
"""What users' code may raise. ``sys.exit`` in it is a failure, and must not end the mirror as if
all were done."""


def load_callable(name: str, args: str | None, *, where: str) -> Callable[..., Any] | Any:
    """The callable that ``module:name`` names.

    A class is instantiated, with the text ``args`` if that is not None, as in Java. A function is
    returned as it is; its caller passes ``args`` on. Other callables are returned as well, but
    cannot have ``args``. Raises ConfigError, with the option ``where``, if it cannot be imported or
    instantiated, or is nothing of these.
    """
    module_name, _, path = name.strip().partition(":")
    if not module_name or not path:
        raise ConfigError(
            f"'{name}' is not module:function.",
            where=where,
            do="Name a Python function or class, for example mirrors.handlers:mask. Java classes "
            "cannot be loaded.",
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name} cannot be imported ({error}).",
            where=where,
            do="Put the module's directory on PYTHONPATH, and check the names.",
        ) from error
    except USERS_ERRORS as error:  # whatever the module raises while it is imported
        raise ConfigError(
            f"{name} cannot be imported: the module fails ({type(error).__name__}: {error}).",
            where=where,
            do="Correct the module.",
        ) from error
    if not callable(found):
        raise ConfigError(
            f"{name} is neither a function nor a class.", where=where, do="Name one of these."
        )
    if isinstance(found, type):
        try:
            return found() if args is None else found(args)
        except USERS_ERRORS as error:  # whatever its constructor raises
            # The error may quote the text, which may be a secret.
            said = f": {error}" if args is None else ""
            raise ConfigError(
                f"{name} cannot be instantiated ({type(error).__name__}{said}).",
                where=where,
                do="Its constructor takes the text of the args option, or nothing without it.",
            ) from (error if args is None else None)
    if args is not None and not hasattr(found, "__code__"):
        raise ConfigError(
            f"{name} is an object, which the text of the args option would not reach.",
            where=where,
            do="Name its class, whose constructor gets the text, or a function, which gets it as "
            "its second argument; or remove the option.",
        )
    return found


@functools.cache
def load_once(name: str, args: str | None, *, where: str) -> Callable[..., Any] | Any:
    """`load_callable`, which instantiates a class only the first time: one object per process."""
    return load_callable(name, args, where=where)
