"""What a worker sees of the pipe to Spark."""

from __future__ import annotations

import socket

from sparkmirror.data.rows import worker_pipes


def test_a_worker_that_spark_has_given_up_knows_it_before_it_has_read_everything() -> None:
    seen: list[bool] = []
    ours, sparks = socket.socketpair()

    def worker(_infile: object, _outfile: object) -> None:
        seen.append(worker_pipes.abandoned())
        sparks.sendall(b"a row that nobody has read")
        seen.append(worker_pipes.abandoned())
        sparks.close()
        seen.append(worker_pipes.abandoned())

    with ours, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        worker_pipes.watched(worker)(infile, outfile)  # type: ignore[arg-type]
    assert seen == [False, False, True]
    assert not worker_pipes.abandoned(), "no worker runs"
