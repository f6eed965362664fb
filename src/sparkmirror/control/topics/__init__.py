"""Topics on the target: discovery, creation, sync of configs and ACLs, heartbeats."""
