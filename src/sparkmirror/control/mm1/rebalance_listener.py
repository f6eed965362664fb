"""MirrorMaker 1's ``--consumer.rebalance.listener``, as a Python callable."""

from __future__ import annotations

from collections.abc import Iterable

from sparkmirror.config.callables import load_callable
from sparkmirror.errors import MirrorError
from sparkmirror.model import GroupSettings, TopicPartition


class Listener:
    """Tells the user's code which partitions this mirror gives up and gets.

    An object with ``on_partitions_revoked`` and ``on_partitions_assigned`` (a class is
    instantiated), each called with a list of `TopicPartition`; or a function, called with
    ``"revoked"`` or ``"assigned"`` and that list, and with the args option's text if it is given.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._name, self._args = settings.listener, settings.listener_args
        self._target = (
            load_callable(self._name, self._args, where="--consumer.rebalance.listener")
            if self._name
            else None
        )

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """All that was read of ``partitions`` is written and committed."""
        self._tell("revoked", partitions)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """``partitions`` are this mirror's from now on; nothing of them is read yet."""
        self._tell("assigned", partitions)

    def _tell(self, what: str, partitions: Iterable[TopicPartition]) -> None:
        if self._target is None:
            return
        listed = sorted(partitions)
        try:
            if hasattr(self._target, "__code__"):
                extra = () if self._args is None else (self._args,)
                self._target(what, listed, *extra)
            else:
                getattr(self._target, f"on_partitions_{what}")(listed)
        except Exception as error:  # whatever the user's code does
            raise MirrorError(
                f"the rebalance listener failed when partitions were {what} "
                f"({type(error).__name__}: {error}).",
                where=f"--consumer.rebalance.listener {self._name}",
                do="Correct it and start again: nothing is lost.",
            ) from error
