"""What acts and looks in a test: mirrors as processes, other clients, a guard against leaks."""
