"""Pages, boards and examples say what is so: their links, commands, tests, figures."""
