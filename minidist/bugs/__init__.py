"""Bugs of record: mistakes that real systems were published with, rebuilt here, and which check notices each."""
