"""Opens the metrics server of a run, which serves the run's figures."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector

from sparkmirror.cli.run.figures import Figures
from sparkmirror.observe.metrics.exposition import MirrorCollector
from sparkmirror.observe.metrics.server import MetricsServer, open_metrics_server
from sparkmirror.settings import MetricsSettings


def serve_metrics(
    settings: MetricsSettings, figures: Figures, *, listen: str, option: str, release: str
) -> MetricsServer:
    """Listen on ``listen``, the value of ``option``, or as the file says if that is empty.

    Raises `MirrorError`.
    """
    if listen:
        settings = replace(settings, listen=listen, where=option)
    registry = CollectorRegistry(auto_describe=False)
    build = {
        "version": release,
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "kafka_python": version("kafka-python"),
    }
    registry.register(MirrorCollector(figures.facts, labels=settings.labels, build=build))
    ProcessCollector(registry=registry)
    return open_metrics_server(settings, registry, figures.health)
