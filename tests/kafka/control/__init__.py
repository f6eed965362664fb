"""The control plane: topics, configs and ACLs kept in step, checkpoints, groups and their lag."""
