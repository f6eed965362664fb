"""The control plane: what runs in the driver beside the data path.

Every job has one shape: observe both clusters, plan in a pure function, apply at the edge.
"""
