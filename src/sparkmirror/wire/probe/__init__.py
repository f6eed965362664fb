"""The way to a cluster, looked at before it is used."""
