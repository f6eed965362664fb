"""The steps of a run: who is measured in each, and how long that takes.

Every mirror of a step has `ROUNDS` rounds, whoever it is. ``MAIN`` are the steps of a complete
result, the one that the README quotes; the others are run by name and added to it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMAT", "MAIN", "ROUNDS", "STEPS", "TASKS", "WINDOW_S", "Step"]

FORMAT = 2
"""Of the result files. Those without a number are from before: the fastest round counted."""
ROUNDS = 3
"""Of every mirror in every step. Odd, so that a median is a round that there was."""
WINDOW_S = 5.0
"""The least steady state of any copy that counts, in seconds."""
TASKS = 4


@dataclass(frozen=True)
class Step:
    """``peers``: keys of `peers.PEERS`, in the order of the first round.

    Sparkmirror's also make the copies that say how much data the step needs. ``minutes``: about
    how long the step takes on two cores. ``rate`` and ``seconds``: of the probe's records, in
    latency steps; 0 in steps that copy.
    """

    peers: tuple[str, ...]
    minutes: int
    main: bool = False
    rate: int = 0
    seconds: float = 0.0
    epoch_s: int = 0
    """Length of sparkmirror's epochs, where it is not the default."""

    @property
    def copies(self) -> bool:
        """Whether it copies a topic; else it probes latency."""
        return not self.rate


ALL_THREE = ("sparkmirror", "mm2", "mm1")
BY_KEY = ("sparkmirror-keys", "mm1")
RING = ("sparkmirror", "sparkmirror-no-ring", "mm2")
EXACT = ("sparkmirror-exact", "mm2-exact")

STEPS = {
    "100b": Step((*ALL_THREE, *EXACT), 13, main=True),
    "1k-lz4": Step(ALL_THREE, 8, main=True),
    "100b-16k": Step(ALL_THREE, 8, main=True),
    "100b-single": Step(ALL_THREE, 9, main=True),
    "latency-100": Step(
        ("sparkmirror", "mm2", "mm2-default", *EXACT), 16, main=True, rate=100, seconds=20.0
    ),
    "latency-10k": Step(("sparkmirror", "mm2"), 7, main=True, rate=10_000, seconds=30.0),
    "100b-by-key": Step(BY_KEY, 5),
    "100b-keys": Step(BY_KEY, 5),
    "1k-lz4-random": Step(ALL_THREE, 7),
    "100b-tls": Step(("sparkmirror", "mm2"), 6),
    "1k-lz4-tls": Step(("sparkmirror", "mm2"), 6),
    "latency-100-by-key": Step(BY_KEY, 6, rate=100, seconds=20.0),
    "latency-100-ring": Step(RING, 7, rate=100, seconds=20.0),
    "latency-10k-ring": Step(RING, 10, rate=10_000, seconds=20.0),
    "latency-100-epochs": Step(("sparkmirror",), 4, rate=100, seconds=35.0, epoch_s=15),
}
MAIN = tuple(name for name, step in STEPS.items() if step.main)
