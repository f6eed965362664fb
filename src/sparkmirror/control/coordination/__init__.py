"""Which process mirrors a flow: the control topic, claims, standbys, orders and status."""
