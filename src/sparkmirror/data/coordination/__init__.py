"""How the tasks of a flow coordinate: who writes, what is assigned, when to end."""
