"""Membership in a consumer group."""
