"""How long a broker that could not be reached is left alone."""

from __future__ import annotations

from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.broker_backoff import BrokerBackoff

CLIENT = ClusterClient(
    "A", ("a:1",), "t", reconnect_backoff_ms=1_000, reconnect_backoff_ms_max=3_000
)


class Waiting:
    def __init__(self) -> None:
        self.now = 100.0
        self.backoff = BrokerBackoff(CLIENT, clock=lambda: self.now)

    def pause_s(self) -> float:
        """How long node 1 is left alone from now on, to a tenth of a second."""
        began = self.now
        while self.backoff.lasts(1):
            self.now += 0.1
        return self.now - began


def test_pauses_grow_up_to_the_limit_and_begin_again_after_a_success() -> None:
    waiting = Waiting()
    assert waiting.pause_s() == 0
    for shortest, longest in ((0.8, 1.3), (1.6, 2.5), (2.4, 3.7), (2.4, 3.7)):
        waiting.backoff.failed(1, waiting.now)
        assert shortest <= waiting.pause_s() <= longest
    assert 1 in waiting.backoff, "it comes after brokers that did not fail"
    waiting.backoff.succeeded(1)
    assert 1 not in waiting.backoff
    waiting.backoff.failed(1, waiting.now)
    assert 0.8 <= waiting.pause_s() <= 1.3


def test_an_attempt_that_hung_is_followed_by_as_long_a_pause_for_that_broker_alone() -> None:
    waiting = Waiting()
    waiting.backoff.failed(1, waiting.now - 20)
    assert not waiting.backoff.lasts(2)
    assert 20 <= waiting.pause_s() <= 20.2
