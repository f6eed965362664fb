"""Seals client properties on their way to the executors.

Spark shows options in plans, logs, event logs and checkpoints, so secrets in them are encrypted.
The key is new for each run and travels in the environment. Processes of this machine inherit it.
Remote executors get it as a ``spark.executorEnv`` setting whose name makes Spark redact it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from sparkmirror.errors import MachineError

__all__ = ["KEY_VARIABLE", "new_key", "run_key", "seal", "unseal"]

KEY_VARIABLE = "SPARKMIRROR_SECRET_KEY"
"""Environment variable; Spark redacts settings that have "secret" in their name."""


def new_key() -> str:
    """A key for one run."""
    # Imported here, so that workers of plaintext runs start without it.
    from cryptography.fernet import Fernet  # noqa: PLC0415

    return Fernet.generate_key().decode()


def run_key() -> str:
    """The key of the run that this process works for. Raises `MachineError` without one."""
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise MachineError(
            "this worker cannot verify the driver's assignments: "
            f"the environment has no {KEY_VARIABLE} of this run.",
            do="Make sure that executors get the variables of spark.executorEnv.",
        )
    return key


def seal(properties: Mapping[str, str], key: str) -> str:
    """``properties`` as text that is unreadable without ``key``; ``""`` if there are none."""
    if not properties:
        return ""
    from cryptography.fernet import Fernet  # noqa: PLC0415

    return Fernet(key).encrypt(json.dumps(dict(properties)).encode()).decode()


def unseal(text: str) -> Mapping[str, str]:
    """The properties in a text that `seal` made, with the key of this process's environment.

    Raises `MachineError` if the key is missing or is another run's.
    """
    if not text:
        return {}
    from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415

    from sparkmirror.config.table.settings import ClientProperties  # noqa: PLC0415

    try:
        return ClientProperties(json.loads(Fernet(os.environ[KEY_VARIABLE]).decrypt(text)))
    except (KeyError, ValueError, InvalidToken) as error:
        raise MachineError(
            "this worker cannot read the clients' security settings: "
            f"the environment has no {KEY_VARIABLE} of this run.",
            do="Make sure that executors get the variables of spark.executorEnv.",
        ) from error
