"""Source topics beside their remote topics, record by record, while the mirror runs or after it.

`Offsets` freezes what is compared, `PartitionComparison` compares one partition.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sparkmirror.control.verify.comparison import PartitionComparison
from sparkmirror.control.verify.scope import Offsets, Progress, Scope
from sparkmirror.model import FlowSettings, TopicPartition
from sparkmirror.observe.figures.comparison_result import PartitionResult
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["verify_flow"]

_THREADS = 4


def verify_flow(
    source: Cluster,
    target: Cluster,
    flow: FlowSettings,
    scope: Scope,
    progress: Progress | None = None,
) -> list[PartitionResult]:
    """Compare every chosen partition, in order. Raises `MirrorError`."""
    chosen = Offsets(source, target, flow, scope)
    progress = progress or Progress()
    progress.partitions += len(chosen.pairs)
    progress.total += chosen.expected()

    def one(tp: TopicPartition) -> PartitionResult:
        result = PartitionComparison(chosen, tp, progress).compared()
        progress.finish()
        return result

    with ThreadPoolExecutor(_THREADS, "verify") as pool:
        futures = [pool.submit(one, tp) for tp in sorted(chosen.pairs)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
