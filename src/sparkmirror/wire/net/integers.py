"""Kafka's integers: big-endian, signed."""

from __future__ import annotations

import struct

__all__ = ["I16", "I32"]

I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
