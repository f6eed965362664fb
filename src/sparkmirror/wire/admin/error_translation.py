"""The one place that turns errors of requests and of sockets into `MirrorError`s."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from sparkmirror.errors import (
    ClusterError,
    Denied,
    MirrorError,
    QuotaExceeded,
    TooFewBrokers,
    Unreachable,
    Unsupported,
)
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.net.framing import ConnectionLost
from sparkmirror.wire.protocol_errors import ApiUnsupported, BrokerError, NoBroker, RequestError

__all__ = ["translate", "translated"]

# Codes of a broker that responds for another one, which does not.
_SILENT_CODES = frozenset(("REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE"))


@contextlib.contextmanager
def translated(client: ClusterClient, doing: str, *, needs: Right | None = None) -> Iterator[None]:
    """Turn what a request or a socket raises in this block into a `MirrorError`.

    ``client``: of the cluster. ``doing``: the action, for example "describing topics". ``needs``:
    the permission that the action needs, for the advice when it is denied.
    """
    try:
        yield
    except MirrorError:
        raise
    except (RequestError, OSError, struct.error) as error:
        raise translate(error, client, doing, needs=needs) from error


def translate(
    error: BaseException, client: ClusterClient, doing: str, *, needs: Right | None = None
) -> MirrorError:
    """The `MirrorError` that explains ``error`` to the user; arguments as in `translated`."""
    where = f"cluster {client.alias}"
    said = _said(error)
    broker = error if isinstance(error, BrokerError) else None
    if broker and broker.is_authentication:
        return Denied(
            f"{doing} failed: the broker refused the login ({said}).",
            where=where,
            do="Check security.protocol and the sasl.* settings of this cluster.",
        )
    if broker and broker.is_authorization:
        if needs is None:
            do = "Grant the principal of this client the operation (kafka-acls.sh --add)."
        else:
            do = grant(client, needs)
        return Denied(f"{doing} is not allowed ({said}).", where=where, do=do)
    if isinstance(error, ApiUnsupported) or (broker and broker.name == "UNSUPPORTED_VERSION"):
        return Unsupported(
            f"{doing} needs an API that this broker does not have ({said}).",
            where=where,
            do="Use a newer broker, or turn off the feature that needs it.",
        )
    silent = isinstance(error, ConnectionLost | NoBroker | OSError)
    if silent or (broker and broker.name in _SILENT_CODES):
        return Unreachable(
            f"{doing} failed: no answer ({said}).",
            where=where,
            do="Check that the brokers run and that their advertised.listeners can be reached.",
        )
    if broker and broker.name == "THROTTLING_QUOTA_EXCEEDED":
        return QuotaExceeded(
            f"{doing} failed: a quota allows no more at present ({said}).",
            where=where,
            do="Raise controller_mutation_rate for this client, or wait.",
        )
    if broker and broker.name == "INVALID_REPLICATION_FACTOR":
        return TooFewBrokers(
            f"{doing} failed: the cluster has too few brokers ({said}).",
            where=where,
            do="Start the brokers that are down, or lower the replication factor.",
        )
    return ClusterError(
        f"{doing} failed ({said}).", where=where, do="See the broker's log for the reason."
    )


def _said(error: BaseException) -> str:
    """The text of ``error`` in one line, with Kafka's name of an error code in front."""
    if isinstance(error, BrokerError):
        # A broker's authorizer quotes the whole request, with its connection and correlation id.
        quoted = error.message.strip().startswith("Request Request(")
        return error.name if quoted else str(error).strip()
    if isinstance(error, RequestError):
        return str(error)
    detail = " ".join(str(part) for part in error.args if part).strip()
    name = type(error).__name__
    return f"{name}: {detail}" if detail else name
