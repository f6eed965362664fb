"""The one place that turns errors of kafka-python and of sockets into `MirrorError`s.

`translated` wraps every call into kafka-python.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator

import kafka.errors as kafka_errors

from sparkmirror.errors import (
    ClusterError,
    ConfigError,
    Denied,
    MirrorError,
    Unreachable,
    Unsupported,
)
from sparkmirror.model import ClusterClient
from sparkmirror.wire.cluster.acl_advice import Right, grant

__all__ = ["quiet_kafka_logs", "translate", "translated"]

log = logging.getLogger(__name__)

_AUTHENTICATION = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)
_SILENCE = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.MetadataEmptyBrokerList,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.BrokerNotAvailableError,
    OSError,
)


# --- kafka-python's log ---------------------------------------------------------------------------


class _Demote(logging.Handler):
    """Logs kafka-python's records at DEBUG, whatever their own level."""

    def emit(self, record: logging.LogRecord) -> None:
        log.debug("%s: %s", record.name, record.getMessage())


def quiet_kafka_logs() -> None:
    """Log all of kafka-python's messages at DEBUG, under our own logger.

    It logs refused connections and timeouts as errors; here they become exceptions that say more.
    """
    logger = logging.getLogger("kafka")
    if not any(isinstance(handler, _Demote) for handler in logger.handlers):
        logger.addHandler(_Demote())
        logger.setLevel(logging.INFO)  # its own DEBUG formats every message on the wire
        logger.propagate = False


# --- translation ----------------------------------------------------------------------------------


@contextlib.contextmanager
def translated(client: ClusterClient, doing: str, *, needs: Right | None = None) -> Iterator[None]:
    """Turn what kafka-python or a socket raises in this block into a `MirrorError`.

    ``client``: of the cluster. ``doing``: the action, for example "describing topics". ``needs``:
    the permission that the action needs, for the advice when it is denied.
    """
    try:
        yield
    except MirrorError:
        raise
    except (kafka_errors.KafkaError, OSError, struct.error) as error:
        raise translate(error, client, doing, needs=needs) from error


def translate(
    error: BaseException, client: ClusterClient, doing: str, *, needs: Right | None = None
) -> MirrorError:
    """The `MirrorError` that explains ``error`` to the user; arguments as in `translated`."""
    where = f"cluster {client.alias}"
    said = _said(error)
    if isinstance(error, _AUTHENTICATION):
        return Denied(
            f"{doing} failed: the broker refused the login ({said}).",
            where=where,
            do="Check security.protocol and the sasl.* settings of this cluster.",
        )
    if isinstance(error, kafka_errors.AuthorizationError):
        if needs is None:
            do = "Grant the principal of this client the operation (kafka-acls.sh --add)."
        else:
            do = grant(client, needs)
        return Denied(f"{doing} is not allowed ({said}).", where=where, do=do)
    if isinstance(error, kafka_errors.UnsupportedVersionError):
        return Unsupported(
            f"{doing} needs an API that this broker does not have ({said}).",
            where=where,
            do="Use a newer broker, or turn off the feature that needs it.",
        )
    if isinstance(error, kafka_errors.KafkaConfigurationError):
        return ConfigError(
            f"{doing} failed: the client settings contradict each other ({said}).",
            where=where,
            do="Check the client properties of this cluster.",
        )
    if isinstance(error, _SILENCE):
        return Unreachable(
            f"{doing} failed: no answer ({said}).",
            where=where,
            do="Check that the brokers run and that their advertised.listeners can be reached.",
        )
    return ClusterError(
        f"{doing} failed ({said}).", where=where, do="See the broker's log for the reason."
    )


def _said(error: BaseException) -> str:
    """The text of ``error`` in one line, with its Kafka name in front."""
    message = getattr(error, "message", None)
    name = message if isinstance(message, str) and message else type(error).__name__
    detail = " ".join(str(part) for part in error.args if part).strip()
    # A broker's authorizer quotes the whole request, with its connection and correlation id.
    detail = "" if detail.startswith("Request Request(") else detail
    return f"{name}: {detail}" if detail and detail != name else name
