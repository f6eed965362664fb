"""Python callables named on the command line: ``module:name``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from sparkmirror.errors import ConfigError

__all__ = ["load_callable"]


def load_callable(name: str, args: str | None, *, where: str) -> Callable[..., Any] | Any:
    """What ``module:name`` stands for, ready to use.

    A class is instantiated, with ``args`` (a text) if that is not None, as Java's constructors are.
    A function is taken as it is; its caller passes ``args`` on. Raises ConfigError, whose place is
    the option ``where``, for what cannot be imported or is neither.
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
    except Exception as error:  # whatever the module does while it is imported
        raise ConfigError(
            f"{name} cannot be imported: the module fails ({type(error).__name__}: {error}).",
            where=where,
            do="Correct the module.",
        ) from error
    if not callable(found):
        raise ConfigError(
            f"{name} is no function and no class.", where=where, do="Name one that is."
        )
    if isinstance(found, type):
        try:
            return found() if args is None else found(args)
        except Exception as error:  # whatever its constructor does
            raise ConfigError(
                f"{name} cannot be made ({type(error).__name__}: {error}).",
                where=where,
                do="Its constructor takes the text of the args option, or nothing without one.",
            ) from error
    return found
