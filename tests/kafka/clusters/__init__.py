"""What tests stand on: clusters of every kind, proxies, networks, a Kerberos realm."""
