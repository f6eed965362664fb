"""Releases of brokers, from the versions of requests that they know."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from sparkmirror.errors import Unreachable
from sparkmirror.wire.admin.broker_versions import broker_versions

_API_VERSIONS, _UPDATE_TOPOLOGY, _METADATA = 18, 93, 3
_OF_4_3 = BROKER_API_VERSIONS[(4, 3)]


@pytest.mark.parametrize(
    ("known", "release"),
    [
        (_OF_4_3, "4.3"),
        ({**_OF_4_3, _API_VERSIONS: (0, 5), _UPDATE_TOPOLOGY: (0, 0)}, "4.4"),
        ({**_OF_4_3, _API_VERSIONS: (0, 6), _METADATA: (0, 99)}, "4.4"),
        (BROKER_API_VERSIONS[(2, 3)], "2.3"),
    ],
)
def test_a_broker_is_of_the_newest_release_whose_requests_it_knows(
    known: dict[int, tuple[int, int]], release: str
) -> None:
    rows = [
        SimpleNamespace(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in known.items()
    ]

    def request(*_: object, node: int, **__: object) -> SimpleNamespace:
        if node == 2:
            raise Unreachable("no answer")
        return SimpleNamespace(api_keys=rows, error_code=0)

    link = SimpleNamespace(request=request)
    assert broker_versions(link, [1, 2, 3]) == {1: release, 3: release}  # type: ignore[arg-type]
