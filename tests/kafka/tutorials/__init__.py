"""Pages of the documentation, examples and the demo: their commands, as a reader types them."""
