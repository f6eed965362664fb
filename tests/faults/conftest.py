"""Whole mirrors that are killed or flooded: the guards of all tests with brokers."""

from __future__ import annotations

from tests.kafka.clusters.shared import shared_clusters_whole  # noqa: F401
from tests.kafka.harness.leaks import no_leaks, pytest_fixture_setup, pytest_runtest_call  # noqa: F401
