"""``sparkmirror doctor``: finds what would keep a mirror from running well, before it runs.

Begin with `examine`. Every check gives findings: what was tried, what was found, what to do.
"""
