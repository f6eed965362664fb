"""Where processor time goes: flame graphs of a mirror in three situations."""
