"""Settings of one client: addresses, login, fetching and producing."""
