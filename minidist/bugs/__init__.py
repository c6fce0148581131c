"""Bugs of record: published mistakes of real systems, rebuilt here, and which check notices each."""
