"""What the tasks of a flow agree on: who writes, what is assigned, when to end."""
