"""What a client has to know of a cluster: leaders, coordinators, offsets, error codes."""
