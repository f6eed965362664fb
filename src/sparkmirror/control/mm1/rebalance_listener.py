"""MirrorMaker 1's ``--consumer.rebalance.listener``, as a Python callable."""

from __future__ import annotations

from collections.abc import Iterable

from sparkmirror.config.callables import USERS_ERRORS, load_once
from sparkmirror.errors import MirrorError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import GroupSettings


class RebalanceListener:
    """Calls the user's code when partitions are revoked or assigned.

    The code is a function or an object (a class is instantiated, once for all flows). A function
    gets ``"revoked"`` or ``"assigned"``, a list of `TopicPartition`, and the text of the args
    option if it is given. An object has ``on_partitions_revoked`` and ``on_partitions_assigned``,
    which get the list.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._name, self._args = settings.listener, settings.listener_args
        self._target = (
            load_once(self._name, self._args, where="--consumer.rebalance.listener")
            if self._name
            else None
        )

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Report that ``partitions`` are revoked: all that was read is written and committed.

        Raises `MirrorError` if the user's code fails.
        """
        self._call("revoked", partitions)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Report that ``partitions`` are assigned: none of their records has been read yet.

        Raises `MirrorError` if the user's code fails.
        """
        self._call("assigned", partitions)

    def _call(self, what: str, partitions: Iterable[TopicPartition]) -> None:
        if self._target is None:
            return
        listed = sorted(partitions)
        try:
            if hasattr(self._target, "__code__"):
                extra = () if self._args is None else (self._args,)
                self._target(what, listed, *extra)
            else:
                getattr(self._target, f"on_partitions_{what}")(listed)
        except USERS_ERRORS as error:
            raise MirrorError(
                f"the rebalance listener failed when partitions were {what} "
                f"({type(error).__name__}: {error}).",
                where=f"--consumer.rebalance.listener {self._name}",
                do="Correct it and start again: nothing is lost.",
            ) from error
