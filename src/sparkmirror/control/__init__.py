"""The control plane: the part of the mirror that runs in the driver, beside the data path.

Every job has one shape: observe both clusters, plan in a pure function, apply the plan.
"""
