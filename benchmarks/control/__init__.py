"""The control plane of a large cluster, and groups that move over."""
