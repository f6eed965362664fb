"""Settings of brokers that stay for long and have nothing to do most of the time."""

from __future__ import annotations

__all__ = ["FEW_THREADS", "QUIET_BROKER"]

# Each of them wakes up three times a second for nothing; every listener, the controllers' too, has
# threads of its own.
FEW_THREADS = {"num.network.threads": "1", "num.io.threads": "2"}

QUIET_BROKER = {
    # A quarter of what an idle broker does is its heartbeats, by default every 0.3 s in our
    # clusters so that one starts and stops a second sooner.
    "broker.heartbeat.interval.ms": "1000",
    # As by Kafka's default: nobody kills these, and on a busy machine heartbeats come late.
    "broker.session.timeout.ms": "9000",
    **FEW_THREADS,
}
