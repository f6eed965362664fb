"""Files of MirrorMaker's documents as they are printed there, with their slips."""

from __future__ import annotations

__all__ = [
    "CONSUMER_PROPERTIES",
    "MIRROR_MY_TOPIC",
    "MIRROR_TWO_SOURCES",
    "PRODUCER_PROPERTIES",
    "TWO_WAYS_OVER_TLS",
]

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

CONSUMER_PROPERTIES = """\
bootstrap.servers={servers}
group.id={group}
"""
"""config/consumer.properties as Kafka ships it; {group} is test-consumer-group there."""

PRODUCER_PROPERTIES = """\
bootstrap.servers={servers}
compression.type=none
"""
"""config/producer.properties likewise."""

MIRROR_MY_TOPIC = (
    "bin/kafka-mirror-maker.sh --consumer.config consumer.properties"
    " --producer.config producer.properties --whitelist my-topic"
)
"""The command of "Mirroring data between clusters" in Kafka's documentation."""

MIRROR_TWO_SOURCES = (
    "bin/kafka-run-class.sh kafka.tools.MirrorMaker --consumer.config sourceCluster1Consumer.config"
    " --consumer.config sourceCluster2Consumer.config --num.streams 2"
    ' --producer.config targetClusterProducer.config --whitelist=".*"'
)
"""The command of the wiki's page on mirroring."""
