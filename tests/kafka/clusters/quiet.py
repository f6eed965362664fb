"""Settings of brokers that stay for long and have nothing to do most of the time."""

from __future__ import annotations

__all__ = ["QUIET_BROKER"]

QUIET_BROKER = {
    # A third of what an idle broker does is its heartbeats, by default every 0.3 s in our clusters
    # so that one starts and stops a second sooner.
    "broker.heartbeat.interval.ms": "1000",
}
