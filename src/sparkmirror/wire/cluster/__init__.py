"""What a client must know about a cluster: leaders, coordinators, offsets, error codes."""
