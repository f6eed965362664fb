"""``sparkmirror doctor``: what keeps a mirror from running well, found before it runs.

`examine` is where to begin. Every check gives findings: what was tried, what came back, what to do.
"""
