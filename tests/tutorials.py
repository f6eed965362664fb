"""Files of MirrorMaker's documents as they are printed there, with their slips."""

from __future__ import annotations

__all__ = ["TWO_WAYS_OVER_TLS"]

TWO_WAYS_OVER_TLS = """\
clusters=cluster-1,cluster-2
cluster-1.bootstrap.servers={servers_1}
cluster-1.security.protocol=SSL
cluster-1.ssl.truststore.password={password}
cluster-1.ssl.truststore.location={truststore}
cluster-2.bootstrap.servers={servers_2}
cluster-2.security.protocol=SSL
cluster-2.ssl.truststore.password={password}
cluster-2.ssl.truststore.location={truststore}
cluster-1->cluster-2.enabled=true
cluster-1->cluster-2.topics=.*
cluster-2->cluster-1.enabled=true
cluster-2->cluster-1B->C.topics=.*
replication.policy.separator=-
"""
"""Both directions over TLS; the last line but one speaks of no flow, and Java passes it over."""
