"""Settings rows: addresses and security; the keys that MirrorMaker passes to every client.

In a MirrorMaker 2 file they can be at the top level (for all clusters), or be written ``A.key``,
``A.consumer.key``, ``A.producer.key`` or ``A.admin.key``.
"""

from __future__ import annotations

from sparkmirror.config.table.setting import Scope, Setting, Status, Type

_ALL = (
    Scope.DRIVER,
    Scope.CONNECTOR,
    Scope.WORKER,
    Scope.CONSUMER,
    Scope.PRODUCER,
    Scope.ADMIN,
)
# Keys that only Java's own code reads, and the reason why they have no effect here.
_OPENSSL = "OpenSSL does this here"
_LIBKRB5 = "libkrb5 gets and renews tickets here"
_BROKERS = "tokens are checked by the brokers"
_IDLE = {
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.provider": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "sasl.kerberos.kinit.cmd": _LIBKRB5,
    "sasl.kerberos.min.time.before.relogin": _LIBKRB5,
    "sasl.kerberos.ticket.renew.jitter": _LIBKRB5,
    "sasl.kerberos.ticket.renew.window.factor": _LIBKRB5,
    "sasl.oauthbearer.allow.unverified.audience": _BROKERS,
    "sasl.oauthbearer.allow.unverified.issuer": _BROKERS,
    "sasl.oauthbearer.clock.skew.seconds": _BROKERS,
    "sasl.oauthbearer.expected.audience": _BROKERS,
    "sasl.oauthbearer.expected.issuer": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKERS,
    "sasl.oauthbearer.jwt.validator.class": _BROKERS,
    "sasl.oauthbearer.scope.claim.name": _BROKERS,
    "sasl.oauthbearer.sub.claim.name": _BROKERS,
}

# Keys that name Java code.
_JAVA = dict.fromkeys(
    ("ssl.engine.factory.class", "sasl.login.class"), "it names Java code, which cannot run here"
)
_CHOICES = {
    "sasl.oauthbearer.assertion.algorithm": ("ES256", "RS256"),
    "sasl.oauthbearer.jwt.retriever.class": (
        "DefaultJwtRetriever",
        "ClientCredentialsJwtRetriever",
        "FileJwtRetriever",
        "JwtBearerJwtRetriever",
    ),
}

_S, _N, _L, _P = Type.STRING, Type.INT, Type.LONG, Type.PASSWORD
_OAUTH = "sasl.oauthbearer."
_ASSERTION = "sasl.oauthbearer.assertion."

# (name, type, default, low, high, doc)
_SSL = (
    ("ssl.cipher.suites", Type.LIST, "", None, None, "Cipher suites to offer."),
    ("ssl.crl.location", _S, None, None, None,
     "File with revocation lists (CRLs), PEM or DER, that brokers' certificates are checked "
     "against; librdkafka's key, Java has none."),
    ("ssl.enabled.protocols", Type.LIST, "TLSv1.2,TLSv1.3", None, None, "TLS versions to offer."),
    ("ssl.endpoint.identification.algorithm", _S, "https", None, None,
     "Check that the certificate names the broker's host; empty = no check."),
    ("ssl.engine.factory.class", Type.CLASS, None, None, None, "Java class for TLS engines."),
    ("ssl.key.password", _P, None, None, None, "Password of the private key."),
    ("ssl.keymanager.algorithm", _S, "SunX509", None, None, "Java key manager."),
    ("ssl.keystore.certificate.chain", _P, None, None, None, "Own certificate chain, as PEM."),
    ("ssl.keystore.key", _P, None, None, None, "Own private key, as PEM."),
    ("ssl.keystore.location", _S, None, None, None, "File with own key and certificate."),
    ("ssl.keystore.password", _P, None, None, None, "Password of that file."),
    ("ssl.keystore.type", _S, "JKS", None, None, "Format of that file."),
    ("ssl.protocol", _S, "TLSv1.3", None, None, "TLS version to start from."),
    ("ssl.provider", _S, None, None, None, "Java security provider."),
    ("ssl.secure.random.implementation", _S, None, None, None, "Java random number source."),
    ("ssl.trustmanager.algorithm", _S, "PKIX", None, None, "Java trust manager."),
    ("ssl.security.level", _N, "2", 1, 2,
     "OpenSSL's security level; 1 also accepts RSA keys from 1,024 bits, SHA-1 signatures and "
     "suites without forward secrecy, as Java may. Java has no such key."),
    ("ssl.truststore.certificates", _P, None, None, None, "Trusted certificates, as PEM."),
    ("ssl.truststore.location", _S, None, None, None, "File with trusted certificates."),
    ("ssl.truststore.password", _P, None, None, None, "Password of that file."),
    ("ssl.truststore.type", _S, "JKS", None, None, "Format of that file."),
)  # fmt: skip
_SASL = (
    ("sasl.mechanism", _S, "GSSAPI", None, None, "SASL mechanism."),
    ("sasl.jaas.config", _P, None, None, None, "Login module and its credentials."),
    ("sasl.client.callback.handler.class", Type.CLASS, None, None, None,
     "Java class that handles SASL callbacks; built in is IAMClientCallbackHandler."),
    ("sasl.login.callback.handler.class", Type.CLASS, None, None, None,
     "Java class that handles login callbacks; built in are OAuthBearerLoginCallbackHandler and "
     "OAuthBearerUnsecuredLoginCallbackHandler."),
    ("sasl.login.class", Type.CLASS, None, None, None, "Java class that logs in."),
    ("sasl.login.connect.timeout.ms", _N, None, 0, None,
     "Time limit for connecting to the token endpoint."),
    ("sasl.login.read.timeout.ms", _N, None, 0, None,
     "Time limit for a response of the token endpoint."),
    ("sasl.login.refresh.buffer.seconds", Type.SHORT, "300", 0, 3600,
     "Refresh a token this long before it expires."),
    ("sasl.login.refresh.min.period.seconds", Type.SHORT, "60", 0, 900,
     "Shortest time between refreshes."),
    ("sasl.login.refresh.window.factor", Type.DOUBLE, "0.8", 0.5, 1.0,
     "Fraction of a token's lifetime after which it is refreshed."),
    ("sasl.login.refresh.window.jitter", Type.DOUBLE, "0.05", 0.0, 0.25,
     "Random part added to that."),
    ("sasl.login.retry.backoff.ms", _L, "100", 0, None, "First pause before a new login."),
    ("sasl.login.retry.backoff.max.ms", _L, "10000", 0, None, "Longest such pause."),
    ("sasl.kerberos.kinit.cmd", _S, "/usr/bin/kinit", None, None, "Path of kinit."),
    ("sasl.kerberos.min.time.before.relogin", _L, "60000", None, None,
     "Shortest time between Kerberos logins."),
    ("sasl.kerberos.service.name", _S, None, None, None,
     "First part of the brokers' Kerberos principal."),
    ("sasl.kerberos.ticket.renew.jitter", Type.DOUBLE, "0.05", None, None,
     "Random part of the renewal time."),
    ("sasl.kerberos.ticket.renew.window.factor", Type.DOUBLE, "0.8", None, None,
     "Fraction of a ticket's lifetime after which it is renewed."),
)  # fmt: skip
_OAUTHBEARER = (
    (_ASSERTION + "algorithm", _S, "RS256", None, None, "Signature of assertions."),
    (_ASSERTION + "claim.aud", _S, None, None, None, "Audience of assertions."),
    (_ASSERTION + "claim.exp.seconds", _N, "300", 0, 86400, "Lifetime of assertions."),
    (_ASSERTION + "claim.iss", _S, None, None, None, "Issuer of assertions."),
    (_ASSERTION + "claim.jti.include", Type.BOOLEAN, "false", None, None,
     "Give each assertion an id."),
    (_ASSERTION + "claim.nbf.seconds", _N, "60", 0, 3600,
     "How long before now assertions become valid."),
    (_ASSERTION + "claim.sub", _S, None, None, None, "Subject of assertions."),
    (_ASSERTION + "file", _S, None, None, None, "File with a finished assertion."),
    (_ASSERTION + "private.key.file", _S, None, None, None, "Key that signs assertions."),
    (_ASSERTION + "private.key.passphrase", _P, None, None, None, "Passphrase of that key."),
    (_ASSERTION + "template.file", _S, None, None, None, "Template of assertions."),
    (_OAUTH + "allow.unverified.audience", Type.BOOLEAN, "false", None, None,
     "Accept tokens for any audience."),
    (_OAUTH + "allow.unverified.issuer", Type.BOOLEAN, "false", None, None,
     "Accept tokens of any issuer."),
    (_OAUTH + "client.credentials.client.id", _S, None, None, None, "OAuth client id."),
    (_OAUTH + "client.credentials.client.secret", _P, None, None, None, "OAuth client secret."),
    (_OAUTH + "clock.skew.seconds", _N, "30", None, None, "Allowance for wrong clocks."),
    (_OAUTH + "expected.audience", Type.LIST, "", None, None, "Audiences to accept."),
    (_OAUTH + "expected.issuer", _S, None, None, None, "Issuer to accept."),
    (_OAUTH + "header.urlencode", Type.BOOLEAN, "false", None, None, "Encode client credentials."),
    (_OAUTH + "jwks.endpoint.refresh.ms", _L, "3600000", None, None, "How often keys are fetched."),
    (_OAUTH + "jwks.endpoint.retry.backoff.ms", _L, "100", None, None, "First pause before retry."),
    (_OAUTH + "jwks.endpoint.retry.backoff.max.ms", _L, "10000", None, None, "Longest such pause."),
    (_OAUTH + "jwks.endpoint.url", _S, None, None, None, "Where keys are fetched."),
    (_OAUTH + "jwt.retriever.class", Type.CLASS, "DefaultJwtRetriever", None, None,
     "How tokens are fetched: with client credentials, from a file, or with a signed assertion."),
    (_OAUTH + "jwt.validator.class", Type.CLASS, "DefaultJwtValidator", None, None,
     "Java class that checks tokens."),
    (_OAUTH + "scope", _S, None, None, None, "Scope to request."),
    (_OAUTH + "scope.claim.name", _S, "scope", None, None, "Claim that holds the scope."),
    (_OAUTH + "sub.claim.name", _S, "sub", None, None, "Claim that holds the subject."),
    (_OAUTH + "token.endpoint.url", _S, None, None, None, "Where tokens are fetched."),
)  # fmt: skip


def _status(name: str) -> Status:
    if name in _JAVA:
        return Status.REFUSED
    return Status.IGNORED if name in _IDLE else Status.SUPPORTED


SECURITY_ROWS = (
    Setting(
        "bootstrap.servers",
        Type.LIST,
        None,
        "Brokers to start from, as host:port.",
        _ALL,
        required=True,
        empty_allowed=False,
        mm1=("metadata.broker.list", "zookeeper.connect"),
    ),
    Setting(
        "security.protocol",
        Type.STRING,
        "PLAINTEXT",
        "How connections are secured; PLAINTEXTSASL is the old spelling of SASL_PLAINTEXT.",
        _ALL,
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXTSASL"),
        fold_case=True,
    ),
    *(
        Setting(
            name,
            kind,
            default,
            doc,
            _ALL,
            low=low,
            high=high,
            choices=_CHOICES.get(name, ()),
            fold_case=True,
            status=_status(name),
            reason=_IDLE.get(name, _JAVA.get(name, "")),
        )
        for name, kind, default, low, high, doc in _SSL + _SASL + _OAUTHBEARER
    ),
)
