"""The commands of sparkmirror, one module each."""
