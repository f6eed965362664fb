"""Masks the secrets of a configuration in everything that is printed."""

from __future__ import annotations

from collections.abc import Iterator

from sparkmirror.config.clients.jaas import parse_property
from sparkmirror.config.table.settings import is_secret
from sparkmirror.observe.logs import register_secret
from sparkmirror.settings import ClusterClient, MirrorSettings


def hide_secrets(settings: MirrorSettings) -> None:
    """Mask every secret of the configuration in logs and errors from here on."""
    register_secret(settings.metrics.token)
    for flow in settings.flows:
        registry = flow.registry
        register_secret(registry.authorization)
        register_secret(registry.authorization.partition(" ")[2])
        register_secret(registry.truststore_password)
        for key, value in registry.keystore:
            if is_secret(key):
                register_secret(value)
        register_secret(flow.hash_salt)
        register_secret(flow.control_secret)
        for table in (table for one in flow.transforms for table in one.tables):
            for name, value in table.options:
                if is_secret(f"table.{table.name}.option.{name}"):
                    register_secret(value)
    for client in _clients(settings):
        for key, value in client.properties.items():
            if is_secret(key):
                register_secret(value)
            if key == "sasl.jaas.config":
                # Messages may quote parts of the entry, so each secret in it is masked alone.
                options = parse_property(value, where=client.alias).options
                for name, secret in options.items():
                    # PlainLoginModule has passwords of other users, too.
                    if name.startswith("user_") or (is_secret(name) and name != "tokenauth"):
                        register_secret(secret)


def _clients(settings: MirrorSettings) -> Iterator[ClusterClient]:
    """All clients, each of which may have a login of its own."""
    for flow in settings.flows:
        yield from (flow.source, flow.target, flow.source_admin, flow.target_admin)
        yield from filter(None, (flow.offset_syncs.client, flow.checkpoints.client))
    for beat in settings.heartbeats:
        yield from (beat.target, beat.target_admin)
