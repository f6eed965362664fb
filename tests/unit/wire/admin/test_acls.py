"""ACLs are sent in a version that says all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.admin import CreateAclsResponse, DeleteAclsResponse

from sparkmirror.errors import MirrorError, Unsupported
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import AclBinding
from tests.unit.wire.fake_broker import FakeBroker, metadata

METADATA, CREATE, DELETE = 3, 30, 31
LITERAL = AclBinding("TOPIC", "A.", "LITERAL", "User:x", "*", "WRITE", "DENY")
PREFIXED = replace(LITERAL, pattern="PREFIXED")
Change = Callable[[Cluster, Sequence[AclBinding]], list[MirrorError | None]]


@pytest.fixture(params=[0, 3])
def highest(request: pytest.FixtureRequest) -> int:
    """Kafka 0.11 to 1.1 has version 0 alone, which knows no prefixes."""
    return int(request.param)


@pytest.fixture
def broker(highest: int) -> Iterator[FakeBroker]:
    def said(key: int, _: int) -> Any:
        if key == METADATA:
            return metadata({1: found}, {})
        if key == CREATE:
            row: Any = CreateAclsResponse.AclCreationResult(error_code=0)
            return CreateAclsResponse(results=[row])
        row = DeleteAclsResponse.DeleteAclsFilterResult(error_code=0, matching_acls=[])
        return DeleteAclsResponse(filter_results=[row])

    found = FakeBroker(said, {METADATA: (0, 9), CREATE: (0, highest), DELETE: (0, highest)})
    yield found
    found.stop()


@pytest.mark.parametrize("change", [Cluster.create_acls, Cluster.delete_acls])
def test_a_prefix_is_never_sent_as_a_name(broker: FakeBroker, highest: int, change: Change) -> None:
    cluster = Cluster(ClusterClient("B", (broker.address,), "c"))
    try:
        assert change(cluster, [LITERAL]) == [None]
        if highest:
            assert change(cluster, [PREFIXED]) == [None]
            return
        asked = len(broker.asked)
        with pytest.raises(Unsupported, match=r"ACLs on prefixes needs an API .* versions 0 to 0"):
            change(cluster, [PREFIXED])
        assert not {CREATE, DELETE} & set(broker.asked[asked:])
    finally:
        cluster.close()
