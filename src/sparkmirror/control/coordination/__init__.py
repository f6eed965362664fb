"""Which process mirrors a flow, and what processes tell each other about it."""
