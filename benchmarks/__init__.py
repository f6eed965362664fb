"""sparkmirror next to the Java MirrorMakers: same machine, brokers, data, one run."""
