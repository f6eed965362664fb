"""The driver's client: topics, settings, ACLs and groups of one cluster."""
