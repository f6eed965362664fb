"""The parts of one flow: its clients, what its slots are told, its jobs."""
