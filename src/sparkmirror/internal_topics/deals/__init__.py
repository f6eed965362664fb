"""Deals: which slot gets which partitions, by load. The algorithm and its record; no I/O."""
