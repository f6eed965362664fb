"""TLS and logins of connections."""
