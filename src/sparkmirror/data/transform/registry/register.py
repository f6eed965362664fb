"""SQL functions for values of a schema registry: `decode_registry` and `encode_registry`.

All of it is Java, as for the functions beside this folder, with the libraries that Spark brings.
``SchemaRegistry.java`` has the registry's REST API, and keeps each schema. ``AvroToJson.java`` and
``JsonToAvro.java`` read and write records; their schema is an ``AvroType.java``. ``ProtoText.java``
reads .proto files, and ``ProtoSchema.java`` reads and writes their messages with the library of
Spark Connect. Login and client certificate are fields of the function's object, which no plan
shows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from sparkmirror.config.clients.tls import tls_settings
from sparkmirror.errors import ConfigError
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import RegistrySettings
from sparkmirror.wire.security.keystores import read_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SOURCES", "calls_registry", "register_registry"]

_NAMES = ("decode_registry", "encode_registry")
_CALL = re.compile(rf"\b({'|'.join(_NAMES)})`?\s*\(", re.IGNORECASE)

SOURCES = tuple(
    Path(__file__).with_name(f"{name}.java")
    for name in (
        "RegistryException", "AvroType", "AvroToJson", "JsonToAvro", "ProtoText", "ProtoSchema",
        "SchemaRegistry", "RegistryFunction", "RegistryFunctions",
    )
)  # fmt: skip
"""The Java files; each may use those before it."""


def calls_registry(flow: FlowSettings) -> bool:
    """Whether a transform of ``flow`` calls our functions, or may do so.

    Raises ConfigError if one calls them and the file names no registry.
    """
    for one in flow.transforms:
        for option, sql in (("where", one.where), ("select", one.select)):
            called = _CALL.search(sql)
            if called and not flow.registry.urls:
                raise ConfigError(
                    f"the transform {one.name} cannot be used: {called[1].lower()} needs a schema "
                    "registry.",
                    where=one.place(option),
                    do=f"Set {flow.name}.sparkmirror.registry.url to its address.",
                )
            if called:
                return True
    # What functions of the users call is not known here.
    return bool(flow.registry.urls) and any(one.functions or one.python for one in flow.transforms)


def register_registry(session: SparkSession, flow: FlowSettings, loader: Any) -> None:
    """Register our functions in ``session``. ``loader``: has the classes of `SOURCES`.

    Raises ConfigError if the registry does not answer, or refuses the login.
    """
    registry = _opened(session, flow.registry, loader)
    _check(registry, flow)
    state: Any = session._jsparkSession.sessionState()
    kind = loader.loadClass("sparkmirror.RegistryFunctions")
    for name in _NAMES:
        builder = _new(session, kind, name, registry)
        state.functionRegistry().createOrReplaceTempFunction(name, builder, "scala_udf")


def _opened(session: SparkSession, settings: RegistrySettings, loader: Any) -> Any:
    """A SchemaRegistry of Java. It has the truststore itself: executors may have no such file."""
    trusted = None
    if settings.truststore:
        try:
            trusted = Path(settings.truststore).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"The truststore {settings.truststore} cannot be read ({error.strerror}).",
                where=settings.place("ssl.truststore.location"),
                do="Name a file that this user may read.",
            ) from error
    context = session.sparkContext
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    urls = gateway.new_array(jvm.java.lang.String, len(settings.urls))
    for index, url in enumerate(settings.urls):
        urls[index] = url
    return _new(
        session,
        loader.loadClass("sparkmirror.SchemaRegistry"),
        urls,
        settings.authorization or None,
        trusted,
        settings.truststore_type,
        settings.truststore_password or None,
        *_identity(settings),
    )


def _identity(settings: RegistrySettings) -> tuple[bytes | None, bytes | None]:
    """Key (PKCS 8) and certificates (PEM) of the client certificate; None for none."""
    store = tls_settings(dict(settings.keystore), where="").keystore
    if store is None:
        return None, None
    option = "ssl.keystore.location" if store.location else "ssl.keystore.key"
    found = read_identity(store, settings.place(option))
    key = load_pem_private_key(found.key, None)
    return (
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        found.chain,
    )


def _new(session: SparkSession, kind: Any, *given: Any) -> Any:
    """An object of the Java class ``kind``, which has one constructor."""
    context = session.sparkContext
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    arguments = gateway.new_array(jvm.java.lang.Object, len(given))
    for index, each in enumerate(given):
        arguments[index] = each
    return kind.getConstructors()[0].newInstance(arguments)


def _check(registry: Any, flow: FlowSettings) -> None:
    fault = registry.fault()
    if fault is None:
        return
    given = {one[0] for one in flow.registry.places}
    key = f"{flow.name}.sparkmirror.registry."
    option, do = {
        "login": (
            "basic.auth.user.info",
            f"Set {key}basic.auth.user.info or {key}bearer.auth.token to a login that may read "
            "schemas.",
        ),
        "tls": (
            "ssl.truststore.location",
            f"Set {key}ssl.truststore.location, .type and .password to a store with the "
            "certificate of the registry's authority, and write the host's name into the address "
            f"as its certificate has it. If the registry wants a client certificate, set {key}ssl."
            "keystore.location, .type and .password.",
        ),
    }.get(fault.kind(), ("url", f"Start the registry, or correct {key}url."))
    raise ConfigError(
        f"The schema registry cannot be used: {fault.getMessage()}.",
        where=flow.registry.place(option if option in given else "url"),
        do=do,
    )
