"""Sources of addresses and offsets of old clusters: ZooKeeper and Ambari."""
