"""Settings rows: where a run serves metrics and health, and to whom."""

from __future__ import annotations

from sparkmirror.config.table.setting import Scope, Setting, Type

__all__ = ["METRICS_ROWS"]

_D = (Scope.DRIVER,)

METRICS_ROWS = (
    Setting(
        "sparkmirror.metrics.listen", Type.STRING, "",
        "`HOST:PORT` for `/metrics` and `/health`; `PORT` alone is on 127.0.0.1, port 0 any free"
        " one, empty none. `--metrics` beats it. An address that others can reach needs a"
        " certificate and a token.", _D,
    ),
    Setting(
        "sparkmirror.metrics.labels", Type.STRING, "partition",
        "How fine the series are: with `topic` the label `partition` is left out, with `flow` also"
        " `topic`.", _D, choices=("partition", "topic", "flow"),
    ),
    Setting(
        "sparkmirror.metrics.tls.cert", Type.STRING, "",
        "PEM file with the certificate chain to serve with; renewed files are taken up.", _D,
    ),
    Setting(
        "sparkmirror.metrics.tls.key", Type.STRING, "",
        "PEM file with the certificate's private key, without a password.", _D,
    ),
    Setting(
        "sparkmirror.metrics.token", Type.PASSWORD, "",
        "What scrapers have to present as `Authorization: Bearer …`; better from a config provider"
        " or a file of its own than here.", _D,
    ),
    Setting(
        "sparkmirror.metrics.token.file", Type.STRING, "",
        "File that holds the token alone; read anew for each request, so it can be replaced.", _D,
    ),
)  # fmt: skip
