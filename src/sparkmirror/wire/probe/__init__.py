"""Checks of the network path to a cluster, before it is used."""
