"""The driver's client: topics, configs, ACLs and groups of one cluster."""
