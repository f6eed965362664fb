"""SASL settings of one client, from the ``sasl.*`` properties and the JAAS entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sparkmirror.config.clients.assertion import RETRIEVER, Assertion, assertion_of
from sparkmirror.config.clients.jaas import QUOTES, LoginModule, named_options, parse_property
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient

__all__ = [
    "ANONYMOUS",
    "KerberosLogin",
    "OAuthLogin",
    "SaslSettings",
    "principal_of",
    "sasl_settings",
]

MECHANISMS = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")
# Callback handlers that are built in; others are Java code, which cannot run here.
_LOGIN_HANDLERS = {
    "OAuthBearerLoginCallbackHandler": ("OAUTHBEARER",),
    "OAuthBearerUnsecuredLoginCallbackHandler": ("OAUTHBEARER",),
}
_CLIENT_HANDLERS = {"IAMClientCallbackHandler": ("AWS_MSK_IAM",)}
_RETRIEVERS = (
    "DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever", RETRIEVER,
)  # fmt: skip
_CREDENTIALS = "sasl.oauthbearer.client.credentials."
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """A Kerberos login.

    ``keytab`` and ``ticket_cache`` are paths. Without a keytab the ticket cache is used; if that is
    empty, the user's own.
    """

    service: str
    principal: str = ""
    keytab: str = ""
    ticket_cache: str = ""


@dataclass(frozen=True, slots=True)
class OAuthLogin:
    """Where OAUTHBEARER tokens come from.

    ``url`` empty: unsecured tokens with ``claims`` (JSON values) and a lifetime of ``lifetime_s``.
    ``url`` with ``file:``: a file that contains the token. ``assertion``: sent to the token
    endpoint instead of client credentials. ``tls``: ``ssl.*`` options of the JAAS entry, for the
    token endpoint only.
    """

    url: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    urlencode_header: bool = False
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 10.0
    retry_backoff_s: float = 0.1
    retry_backoff_s_max: float = 10.0
    refresh_factor: float = 0.8
    refresh_jitter: float = 0.05
    refresh_min_s: float = 60.0
    refresh_buffer_s: float = 300.0
    claims: Mapping[str, object] = field(default_factory=dict)
    lifetime_s: int = 3600
    extensions: Mapping[str, str] = field(default_factory=dict)
    assertion: Assertion | None = None
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """How a client logs in; ``mechanism`` determines which fields are used."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token_auth: bool = False
    oauth: OAuthLogin | None = None
    kerberos: KerberosLogin | None = None
    aws_profile: str = ""


def sasl_settings(
    properties: Mapping[str, str], *, where: str, jaas_where: str = ""
) -> SaslSettings:
    """``sasl.*`` in ``properties`` as settings; absent keys have Java's defaults.

    ``where`` and ``jaas_where``: the cluster or line that errors name. Raises ConfigError.
    """
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"sasl.mechanism={mechanism} is not supported.",
            where=where,
            do=f"Choose from: {', '.join(MECHANISMS)} (with exactly this spelling).",
        )
    _check_handlers(properties, mechanism, where)
    if _asks_an_endpoint(properties):
        _check_url(properties.get(_ENDPOINT, "").strip(), where)
    text = properties.get("sasl.jaas.config", "").strip()
    if not text:
        raise ConfigError(
            f"security.protocol={properties.get('security.protocol', 'SASL')} needs a login "
            f"(sasl.mechanism={mechanism}), but none is given.",
            where=where,
            do="Set sasl.jaas.config, or name a JAAS file with an entry KafkaClient: "
            "KAFKA_OPTS=-Djava.security.auth.login.config=FILE.",
        )
    module = parse_property(text, where=jaas_where or where)
    wanted, build = _BUILDERS[mechanism]
    if module.short_name != wanted:
        raise ConfigError(
            f"sasl.mechanism={mechanism} needs the login module {wanted}, "
            f"but the JAAS entry names {module.short_name}.",
            where=jaas_where or where,
            do=f"Set sasl.mechanism to what the cluster uses, or write {wanted} in the JAAS entry.",
        )
    return build(mechanism, module, properties, jaas_where or where)


def _check_handlers(properties: Mapping[str, str], mechanism: str, where: str) -> None:
    for key, known in (
        ("sasl.login.callback.handler.class", _LOGIN_HANDLERS),
        ("sasl.client.callback.handler.class", _CLIENT_HANDLERS),
        ("sasl.login.class", dict[str, tuple[str, ...]]()),
    ):
        given = properties.get(key, "").strip()
        if given and mechanism not in known.get(given.rpartition(".")[2], ()):
            built_in = ", ".join(name for name, fit in known.items() if mechanism in fit)
            raise ConfigError(
                f"{key}={given} names Java code, which cannot run here.",
                where=where,
                do="Remove it" + (f", or name what is built in: {built_in}." if built_in else "."),
            )


def _asks_an_endpoint(properties: Mapping[str, str]) -> bool:
    """Whether OAUTHBEARER tokens come from a token endpoint, or from a file."""
    handler = properties.get("sasl.login.callback.handler.class", "").rpartition(".")[2]
    return handler == "OAuthBearerLoginCallbackHandler"


def _check_url(url: str, where: str) -> None:
    """Raise ConfigError if the token endpoint is set, but is not a URL that can be used."""
    try:
        parts = urlsplit(url)
        good = url.startswith("file:") or (
            re.fullmatch(r"https?://[\x21-\x7e]+", url) is not None
            and bool(parts.hostname)
            and parts.port != 0
            and parts.username is None
        )
    except ValueError:  # a port that is no number, half an IPv6 address
        good = False
    if url and not good:
        # The URL itself is not shown: it may have a login in it.
        raise ConfigError(
            f"{_ENDPOINT} is not an http(s): or file: URL.",
            where=where,
            do="Write https://HOST:PORT/PATH, without a login in it, or file:///PATH.",
        )


def _option(module: LoginModule, name: str, where: str) -> str:
    value = module.options.get(name, "")
    if not value:
        raise ConfigError(
            f"the JAAS entry of {module.short_name} has no {name}.",
            where=where,
            do=f'Add {name}="..." to it.',
        )
    return value


def _only(module: LoginModule, known: frozenset[str], where: str) -> None:
    """Raise ConfigError for unknown options: in Java they may select other code."""
    unknown = set(module.options) - known
    if unknown:
        raise ConfigError(
            f"the JAAS entry of {module.short_name} has options that are not supported: "
            f"{named_options(unknown)}",
            where=where,
            do=f"Remove them; known are {named_options(known)} {QUOTES}",
        )


def _password_login(
    mechanism: str, module: LoginModule, _: Mapping[str, str], where: str
) -> SaslSettings:
    scram = mechanism != "PLAIN"
    # A broker's file may list its users (user_NAME) in the entry that clients also read.
    users = {name for name in module.options if name.startswith("user_")}
    known = {"username", "password", "serviceName", *users} | ({"tokenauth"} if scram else set())
    _only(module, frozenset(known), where)
    return SaslSettings(
        mechanism,
        username=_option(module, "username", where),
        password=_option(module, "password", where),
        token_auth=module.options.get("tokenauth", "").lower() == "true",
    )


# -- Kerberos --------------------------------------------------------------------------------------

_KRB5_OPTIONS = frozenset(
    {"useKeyTab", "keyTab", "principal", "serviceName", "useTicketCache", "ticketCache"}
)
# Other options of Java's module, which have no effect here: there is no prompt and no Subject to
# store keys in, and libkrb5 logs through KRB5_TRACE.
_KRB5_WITHOUT_EFFECT = frozenset(
    {"storeKey", "doNotPrompt", "debug", "refreshKrb5Config", "isInitiator", "renewTGT",
     "clearPass", "storePass", "tryFirstPass", "useFirstPass"}
)  # fmt: skip


def _kerberos(
    mechanism: str, module: LoginModule, properties: Mapping[str, str], where: str
) -> SaslSettings:
    _only(module, _KRB5_OPTIONS | _KRB5_WITHOUT_EFFECT, where)
    configured = properties.get("sasl.kerberos.service.name", "").strip()
    in_jaas = module.options.get("serviceName", "")
    if configured and in_jaas and configured != in_jaas:
        raise ConfigError(
            f"the Kerberos service name is {in_jaas} in the JAAS entry and {configured} in "
            "sasl.kerberos.service.name.",
            where=where,
            do="Keep one of them: the first part of the brokers' principal.",
        )
    service = configured or in_jaas
    if not service:
        raise ConfigError(
            "no Kerberos service name is given.",
            where=where,
            do="Set sasl.kerberos.service.name to the first part of the brokers' principal "
            "(kafka for kafka/HOST@REALM).",
        )
    use_keytab = _true(module, "useKeyTab")
    use_cache = _true(module, "useTicketCache")
    if not use_keytab and not use_cache:
        raise ConfigError(
            "the JAAS entry of Krb5LoginModule has neither useKeyTab=true nor "
            "useTicketCache=true, and there is no prompt for a password.",
            where=where,
            do='Add useKeyTab=true keyTab="FILE" principal="NAME@REALM".',
        )
    keytab = module.options.get("keyTab", "")
    if use_keytab:
        _option(module, "keyTab", where)
        _option(module, "principal", where)
    return SaslSettings(
        mechanism,
        kerberos=KerberosLogin(
            service,
            module.options.get("principal", ""),
            _path(keytab) if use_keytab else "",
            _path(module.options.get("ticketCache", "")),
        ),
    )


def _true(module: LoginModule, name: str) -> bool:
    return module.options.get(name, "").lower() == "true"


def _path(text: str) -> str:
    return re.sub(r"^(?i:FILE):/*(?=/)", "", text)


# -- OAUTHBEARER -----------------------------------------------------------------------------------


def _oauth(
    mechanism: str, module: LoginModule, properties: Mapping[str, str], where: str
) -> SaslSettings:
    retriever = properties.get("sasl.oauthbearer.jwt.retriever.class", "").rpartition(".")[2]
    if retriever and retriever not in _RETRIEVERS:
        raise ConfigError(
            f"sasl.oauthbearer.jwt.retriever.class={retriever} is not supported.",
            where=where,
            do=f"Choose from: {', '.join(_RETRIEVERS)}.",
        )
    if _asks_an_endpoint(properties):
        login = _token_endpoint(module, properties, where)
    else:
        login = _unsecured(module, where)
    return SaslSettings(mechanism, oauth=login)


def _token_endpoint(module: LoginModule, properties: Mapping[str, str], where: str) -> OAuthLogin:
    options = module.options
    known = {"clientId", "clientSecret", "scope"}
    known |= {key for key in options if key.startswith(("extension_", "ssl."))}
    _only(module, frozenset(known), where)
    url = properties.get(_ENDPOINT, "").strip()
    if not url:
        raise ConfigError(
            f"{_ENDPOINT} is missing.",
            where=where,
            do="Set it to the token endpoint of the identity provider.",
        )

    def value(key: str, option: str) -> str:
        return properties.get(_CREDENTIALS + key, "").strip() or options.get(option, "")

    client_id, secret = value("client.id", "clientId"), value("client.secret", "clientSecret")
    retriever = properties.get("sasl.oauthbearer.jwt.retriever.class", "").rpartition(".")[2]
    assertion = assertion_of(properties, where=where) if retriever == RETRIEVER else None
    if assertion is not None and not url.startswith("http"):
        raise ConfigError(
            f"{RETRIEVER} needs a token endpoint, but {_ENDPOINT} is not one.",
            where=where,
            do="Set it to the http(s) address of the identity provider's token endpoint.",
        )
    if url.startswith("http") and assertion is None and not (client_id and secret):
        raise ConfigError(
            "OAUTHBEARER has no client id or no client secret.",
            where=where,
            do=f"Set {_CREDENTIALS}client.id and {_CREDENTIALS}client.secret, or clientId and "
            "clientSecret in the JAAS entry.",
        )

    def number(key: str, default: float, convert: Callable[[float], float] = float) -> float:
        text = properties.get(key, "").strip()
        return convert(float(text)) if text else default

    def seconds(key: str, default: float) -> float:
        return number(key, default, lambda ms: ms / 1000)

    return OAuthLogin(
        url=url,
        client_id=client_id,
        client_secret=secret,
        scope=properties.get("sasl.oauthbearer.scope", "").strip() or options.get("scope", ""),
        urlencode_header=properties.get("sasl.oauthbearer.header.urlencode", "").lower() == "true",
        connect_timeout_s=seconds("sasl.login.connect.timeout.ms", 10.0),
        read_timeout_s=seconds("sasl.login.read.timeout.ms", 10.0),
        retry_backoff_s=seconds("sasl.login.retry.backoff.ms", 0.1),
        retry_backoff_s_max=seconds("sasl.login.retry.backoff.max.ms", 10.0),
        refresh_factor=number("sasl.login.refresh.window.factor", 0.8),
        refresh_jitter=number("sasl.login.refresh.window.jitter", 0.05),
        refresh_min_s=number("sasl.login.refresh.min.period.seconds", 60.0),
        refresh_buffer_s=number("sasl.login.refresh.buffer.seconds", 300.0),
        extensions=_token_extensions(options, "extension_", where),
        assertion=assertion,
        tls={key: text for key, text in options.items() if key.startswith("ssl.")},
    )


def _extensions(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key[len(prefix) :]: text for key, text in options.items() if key.startswith(prefix)}


def _token_extensions(options: Mapping[str, str], prefix: str, where: str) -> dict[str, str]:
    """The SASL extensions that are sent with a token, as Java's login accepts them (KIP-342)."""
    found = _extensions(options, prefix)
    for name, text in found.items():
        # The options may be parts of a secret whose quotes were forgotten: none is shown.
        if not re.fullmatch(r"[A-Za-z]+", name) or name == "auth":
            raise ConfigError(
                f"the name of an option {prefix}... in the JAAS entry is not allowed.",
                where=where,
                do="Use letters only, and another name than auth.",
            )
        if not re.fullmatch(r"[\x21-\x7e \t\r\n]+", text):
            raise ConfigError(
                f"the value of an option {prefix}... in the JAAS entry is empty or not ASCII text.",
                where=where,
                do="Use printable ASCII characters and spaces.",
            )
    return found


def _unsecured(module: LoginModule, where: str) -> OAuthLogin:
    """Java's unsecured tokens: claims from the JAAS entry, no signature. For tests only."""
    options = module.options
    prefix = "unsecuredLogin"
    claims: dict[str, object] = {}
    claims |= _extensions(options, f"{prefix}StringClaim_")
    known = {f"{prefix}LifetimeSeconds", f"{prefix}PrincipalClaimName", f"{prefix}ScopeClaimName"}
    known |= {key for key in options if key.startswith((f"{prefix}StringClaim_",
              f"{prefix}NumberClaim_", f"{prefix}ListClaim_", f"{prefix}Extension_"))}  # fmt: skip
    _only(module, frozenset(known), where)
    try:
        for name, text in _extensions(options, f"{prefix}NumberClaim_").items():
            claims[name] = float(text)
        lifetime_s = int(options.get(f"{prefix}LifetimeSeconds", "3600"))
    except ValueError as error:
        raise ConfigError(
            f"an option {prefix}NumberClaim_... or {prefix}LifetimeSeconds is not a number.",
            where=where,
            do="Write digits.",
        ) from error
    for name, text in _extensions(options, f"{prefix}ListClaim_").items():
        # The first character separates the elements.
        claims[name] = text[1:].split(text[0]) if text else []
    principal = options.get(f"{prefix}PrincipalClaimName", "sub")
    if principal not in claims:
        raise ConfigError(
            f"the JAAS entry of OAuthBearerLoginModule names no principal "
            f"({prefix}StringClaim_{principal}), and no token endpoint is configured.",
            where=where,
            do="Set sasl.login.callback.handler.class to org.apache.kafka.common.security."
            "oauthbearer.OAuthBearerLoginCallbackHandler and "
            "sasl.oauthbearer.token.endpoint.url.",
        )
    return OAuthLogin(
        claims=claims,
        lifetime_s=lifetime_s,
        extensions=_token_extensions(options, f"{prefix}Extension_", where),
    )


# -- AWS -------------------------------------------------------------------------------------------


def _aws(
    mechanism: str, module: LoginModule, properties: Mapping[str, str], where: str
) -> SaslSettings:
    _only(module, frozenset({"awsProfileName"}), where)
    if properties.get("security.protocol", "").upper() == "SASL_PLAINTEXT":
        raise ConfigError(
            "AWS_MSK_IAM works over TLS only.", where=where, do="Set security.protocol=SASL_SSL."
        )
    return SaslSettings(mechanism, aws_profile=module.options.get("awsProfileName", ""))


_Builder = Callable[[str, LoginModule, Mapping[str, str], str], SaslSettings]
_BUILDERS: Mapping[str, tuple[str, _Builder]] = {
    "PLAIN": ("PlainLoginModule", _password_login),
    "SCRAM-SHA-256": ("ScramLoginModule", _password_login),
    "SCRAM-SHA-512": ("ScramLoginModule", _password_login),
    "OAUTHBEARER": ("OAuthBearerLoginModule", _oauth),
    "GSSAPI": ("Krb5LoginModule", _kerberos),
    "AWS_MSK_IAM": ("IAMLoginModule", _aws),
}


ANONYMOUS = "User:ANONYMOUS"
_NAMED_LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def principal_of(client: ClusterClient) -> str | None:
    """``User:NAME``; None for certificates, tickets and tokens, where the broker decides.

    Raises ConfigError for a login that cannot work.
    """
    if client.security_protocol == "PLAINTEXT":
        return ANONYMOUS
    if client.security_protocol == "SSL":
        certified = any(key.startswith("ssl.keystore.") for key in client.properties)
        return None if certified else ANONYMOUS
    login = sasl_settings(client.properties, where=f"cluster {client.alias}")
    if login.mechanism not in _NAMED_LOGINS or login.token_auth:
        return None
    return f"User:{login.username}"
