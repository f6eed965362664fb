"""Reads Strimzi's custom resource KafkaMirrorMaker2, versions v1beta2 and v1.

Values in Kubernetes Secrets become references to files: each Secret is expected as a directory with
one file per key, as Kubernetes mounts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkmirror.config.connectors import CHECKPOINT, HEARTBEAT, SOURCE, Connector, ConnectorSetup
from sparkmirror.config.files.documents import Node, load_yaml
from sparkmirror.config.files.origin import Origin
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.keys import KeyUse, classify
from sparkmirror.config.strimzi_oauth import OAUTH, oauth_lines
from sparkmirror.config.table.settings import Status
from sparkmirror.errors import ConfigError

__all__ = ["read_strimzi"]

_KIND = "KafkaMirrorMaker2"
_PROVIDER = "mounted"
_DIRECTORY = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
_OFFSET_TOPIC = "mirrormaker2-cluster-offsets"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGINS = {
    "scram-sha-256": ("SCRAM-SHA-256", _SCRAM),
    "scram-sha-512": ("SCRAM-SHA-512", _SCRAM),
    "plain": ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
}
_CONNECTORS = {
    "sourceConnector": SOURCE,
    "checkpointConnector": CHECKPOINT,
    "heartbeatConnector": HEARTBEAT,
}
# Fields of a mirror: (field, the connectors' key, kinds of connectors).
_PATTERNS = (
    ("topicsPattern", "topics", (SOURCE, CHECKPOINT)),
    ("topicsExcludePattern", "topics.exclude", (SOURCE, CHECKPOINT)),
    ("topicsBlacklistPattern", "topics.exclude", (SOURCE, CHECKPOINT)),
    ("groupsPattern", "groups", (CHECKPOINT,)),
    ("groupsExcludePattern", "groups.exclude", (CHECKPOINT,)),
    ("groupsBlacklistPattern", "groups.exclude", (CHECKPOINT,)),
)
_OF_PODS = "it is for Strimzi's pods"
_SPEC = {"clusters", "mirrors", "connectCluster", "target"}
_CLUSTER = {"alias", "bootstrapServers", "tls", "authentication", "config"}
_TARGET = {*_CLUSTER, "groupId", "configStorageTopic", "offsetStorageTopic", "statusStorageTopic"}
_MIRROR = {"sourceCluster", "targetCluster", "source", *_CONNECTORS, *(one[0] for one in _PATTERNS)}
_CONNECTOR = {"tasksMax", "config"}
_PARTS = {
    "autoRestart": "a partition that fails is retried automatically",
    "pause": "pause the flow after the start: sparkmirror pause",
    "state": "pause the flow after the start: sparkmirror pause",
}


def read_strimzi(path: Path, secrets: Path) -> ConnectorSetup:
    """The mirrors of a KafkaMirrorMaker2 resource.

    ``secrets``: the directory where its Secrets are mounted, each in a subdirectory of its name.
    Raises ConfigError with file, line and key.
    """
    return _Reader(path, secrets).setup()


class _Reader:
    def __init__(self, path: Path, secrets: Path) -> None:
        self._path = path
        self._secrets = secrets
        self._setup = ConnectorSetup(f"Strimzi's {path.name}")

    def setup(self) -> ConnectorSetup:
        spec = self._resource().need("spec")
        self._name_others(spec, _SPEC, _OF_PODS)
        target = spec.get("target")
        if target is not None:
            self._cluster(target, _TARGET)
            aliases = [_alias(target)]
        else:
            aliases = [_alias(one) for one in spec.need("clusters").items()]
            for one in spec.need("clusters").items():
                self._cluster(one, _CLUSTER)
        for mirror in spec.need("mirrors").items():
            self._mirror(mirror, target, aliases)
        found = self._setup
        if found.providers:
            found.remarks.append(
                f"Each Secret is read from a directory below {self._secrets}, with a file for each "
                "key, as Kubernetes mounts it. Outside Kubernetes, create these files; kubectl get "
                "secret NAME -o yaml shows their contents."
            )
        found.remarks.append(
            "Stop the resource (replicas: 0) before the mirror starts, or records arrive twice."
        )
        return found

    def _resource(self) -> Node:
        found = [
            one
            for one in load_yaml(self._path)
            if isinstance(one.value, dict) and (kind := one.get("kind")) and kind.value == _KIND
        ]
        if len(found) != 1:
            what = f"no {_KIND}" if not found else f"{len(found)} resources of kind {_KIND}"
            raise ConfigError(
                f"the file contains {what}.",
                where=found[1].where if found else str(self._path),
                do=f"Name a file with one document of kind: {_KIND}.",
            )
        return found[0]

    def _name_others(self, node: Node, known: set[str], reason: str) -> None:
        """Note all keys of ``node`` that are not ``known`` as left out."""
        for key, value in node.table().items():
            if key not in known:
                self._setup.leave_out(_entry(value, value.path, shown=""), _PARTS.get(key, reason))

    def _cluster(self, cluster: Node, known: set[str]) -> None:
        alias = _alias(cluster)
        self._name_others(cluster, known, "not a field of a cluster")
        if alias in self._setup.clusters:
            cluster.wrong(f"has the alias {alias}, which another cluster also has")
        servers = cluster.need("bootstrapServers")
        self._take(alias, "bootstrap.servers", servers, servers.text())
        self._tls(alias, cluster)
        self._login(alias, cluster)
        config = cluster.get("config")
        for key, node in (config.table() if config else {}).items():
            self._cluster_key(alias, key, node)
        storage = cluster.get("offsetStorageTopic")
        lines = self._setup.clusters[alias]
        given = lines.pop("offset.storage.topic", None)
        topic = storage.text() if storage else given.entry.value if given else _OFFSET_TOPIC
        self._setup.offset_topic[alias] = topic
        for field in ("groupId", "configStorageTopic", "statusStorageTopic"):
            if found := cluster.get(field):
                self._setup.leave_out(_entry(found, found.path), "no Kafka Connect runs here")

    def _take(
        self, alias: str, key: str, node: Node, value: str, *, reference: bool = False
    ) -> None:
        entry = Entry(node.path, value, Origin.in_file(node.where))
        self._setup.take(alias, key, entry, reference=reference)

    def _cluster_key(self, alias: str, key: str, node: Node) -> None:
        if node.value is None:
            return
        entry = Entry(node.path, node.text(), Origin.in_file(node.where))
        if key.startswith("config.providers"):
            self._setup.leave_out(entry, "providers in use are declared at the top of the file")
            return
        outcome = classify(Entry(f"{alias}.{key}", entry.value, entry.origin), (alias,))
        if isinstance(outcome, ConfigError):
            raise ConfigError(f"{node.path}: {outcome.what}", where=node.where, do=outcome.do)
        if not isinstance(outcome, KeyUse):
            self._setup.leave_out(entry, "not a key of a MirrorMaker 2 cluster")
        elif outcome.ignored or outcome.setting.status is Status.IGNORED:
            self._setup.leave_out(entry, outcome.ignored or outcome.setting.reason)
        else:
            self._take(alias, key, node, entry.value)

    def _tls(self, alias: str, cluster: Node) -> None:
        tls = cluster.get("tls")
        protocol = "PLAINTEXT"
        if tls is not None:
            protocol = "SSL"
            certificates = tls.get("trustedCertificates")
            references = (
                [self._certificate(one) for one in certificates.items()] if certificates else []
            )
            if certificates and references:
                value = " ".join(references)
                self._take(alias, "ssl.truststore.type", certificates, "PEM")
                self._take(
                    alias, "ssl.truststore.certificates", certificates, value, reference=True
                )
        login = cluster.get("authentication")
        kind = login.need("type").text() if login else ""
        if login and (kind in _LOGINS or kind == OAUTH or _sasl(login)):
            protocol = f"SASL_{'SSL' if tls is not None else 'PLAINTEXT'}"
        self._take(alias, "security.protocol", tls or login or cluster, protocol)

    def _certificate(self, node: Node) -> str:
        if pattern := node.get("pattern"):
            pattern.wrong(
                "selects files by a pattern, which is not supported. Write certificate: and one "
                "key of the Secret"
            )
        return self._reference(node.need("secretName"), node.need("certificate"))

    def _reference(self, secret: Node, key: Node) -> str:
        """A placeholder for one key of a Secret."""
        self._setup.providers[_PROVIDER] = _DIRECTORY
        return f"${{{_PROVIDER}:{self._secrets / secret.text()}:{key.text()}}}"

    def _login(self, alias: str, cluster: Node) -> None:
        login = cluster.get("authentication")
        if login is None:
            return
        kind = login.need("type")
        if kind.text() in _LOGINS:
            mechanism, module = _LOGINS[kind.text()]
            password = login.need("passwordSecret")
            reference = self._reference(password.need("secretName"), password.need("password"))
            user = login.need("username")
            name = user.text().replace("\\", "\\\\").replace('"', '\\"')
            self._take(alias, "sasl.mechanism", kind, mechanism)
            value = f'{module} required username="{name}" password="{reference}";'
            self._take(alias, "sasl.jaas.config", user, value, reference=True)
        elif kind.text() == "tls":
            pair = login.need("certificateAndKey")
            secret = pair.need("secretName")
            self._take(alias, "ssl.keystore.type", pair, "PEM")
            for key, field in (("certificate.chain", "certificate"), ("key", "key")):
                value = self._reference(secret, pair.need(field))
                self._take(alias, f"ssl.keystore.{key}", pair, value, reference=True)
        elif kind.text() == OAUTH:
            found = oauth_lines(login, self._reference, self._secrets)
            for key, node, value in found.lines:
                self._take(alias, key, node, value, reference=True)
            for node, reason in found.left_out:
                self._setup.leave_out(_entry(node, node.path, shown=""), reason)
        elif kind.text() == "custom":
            config = login.get("config")
            for key, node in (config.table() if config else {}).items():
                self._cluster_key(alias, key, node)
        else:
            kind.wrong(
                f"is {kind.text()}, which is not supported. Remove authentication from the "
                "file and write the sasl.* lines by hand (docs/security.md)"
            )

    def _mirror(self, mirror: Node, target: Node | None, aliases: list[str]) -> None:
        self._name_others(mirror, _MIRROR, "not a field of a mirror")
        if target is not None:
            source = mirror.need("source")
            self._cluster(source, _CLUSTER)
            ends = (_alias(source), _alias(target))
        else:
            ends = (self._end(mirror, "sourceCluster", aliases),
                    self._end(mirror, "targetCluster", aliases))  # fmt: skip
        for field, kind in _CONNECTORS.items():
            node = mirror.get(field)
            if node is None:
                continue
            self._name_others(node, _CONNECTOR, "not a field of a connector")
            config = dict(_config(node))
            for name, key, kinds in _PATTERNS:
                pattern = mirror.get(name)
                if pattern is not None and kind in kinds:
                    config[key] = _entry(pattern, pattern.path)
            tasks = node.get("tasksMax")
            if tasks is not None:
                config["tasks.max"] = _entry(tasks, tasks.path)
            name = f"{ends[0]}->{ends[1]}.{kind}Connector"
            self._setup.connectors.append(Connector(kind, name, *ends, config, node.where))

    def _end(self, mirror: Node, field: str, aliases: list[str]) -> str:
        node = mirror.need(field)
        if node.text() not in aliases:
            node.wrong(
                f"is {node.text()}, which is not an alias of spec.clusters ({', '.join(aliases)})"
            )
        return node.text()


def _sasl(login: Node) -> bool:
    """Whether an authentication of type custom uses SASL."""
    found = login.get("sasl")
    return found is not None and found.value == "true"


def _alias(cluster: Node) -> str:
    return cluster.need("alias").text()


def _config(connector: Node) -> Iterator[tuple[str, Entry]]:
    config: Mapping[str, Node] = {}
    found = connector.get("config")
    if found is not None:
        config = found.table()
    for key, node in config.items():
        if node.value is not None:
            yield key, _entry(node, node.path)


def _entry(node: Node, key: str, *, shown: str | None = None) -> Entry:
    """``node`` as an entry. ``shown``: use this value instead of the node's, for tables."""
    return Entry(key, node.text() if shown is None else shown, Origin.in_file(node.where))
