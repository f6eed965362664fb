"""What knows old clusters: ZooKeeper and Ambari."""
