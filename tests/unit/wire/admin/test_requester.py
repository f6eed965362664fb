"""A connection of the control plane that was closed, while others still have work for it."""

from __future__ import annotations

import socket
import time

import pytest
from kafka.protocol.metadata import MetadataRequest

from sparkmirror.errors import Unreachable
from sparkmirror.model import ClusterClient
from sparkmirror.wire.admin.requester import Requester


@pytest.mark.parametrize("for_good", [False, True])
def test_what_comes_after_the_end_connects_nowhere(for_good: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        link = Requester(ClusterClient("A", (address,), "test", request_timeout_ms=1_500))
        link.close(for_good=for_good)
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            link.request(lambda: MetadataRequest(topics=[]), "asking")
        took_s = time.monotonic() - began_s
        link.close()
        server.settimeout(0.2)
        if for_good:
            assert took_s < 1
            with pytest.raises(TimeoutError):
                server.accept()
        else:
            server.accept()[0].close()  # a later request opens connections again
