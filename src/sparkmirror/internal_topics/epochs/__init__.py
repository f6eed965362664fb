"""Epochs: which plan counts, and which slot gets what is added while it does. No I/O."""
