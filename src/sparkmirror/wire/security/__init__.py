"""TLS and logins for connections."""
