"""The permissions that a mirror needs."""
