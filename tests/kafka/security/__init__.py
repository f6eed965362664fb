"""TLS, SASL, Kerberos and permissions: every listener and login, and what is wrong with one."""
