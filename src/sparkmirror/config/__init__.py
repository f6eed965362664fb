"""Configuration: MirrorMaker's own files in, checked ``model.MirrorSettings`` out.

``load_mm2`` reads a MirrorMaker 2 properties file, ``load_mm1`` MirrorMaker 1's pair of files.
"""

from sparkmirror.config.mm1 import load_mm1
from sparkmirror.config.mm2 import load_mm2
from sparkmirror.config.redact import redact

__all__ = ["load_mm1", "load_mm2", "redact"]
