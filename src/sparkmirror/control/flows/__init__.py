"""The parts of one flow: its clients, its published assignment, its jobs."""
