"""Where a flow begins, and how far it is behind."""
