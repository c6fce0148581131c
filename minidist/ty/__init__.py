"""Types of distribution over a chapter's own forward: `minidist/spmd_types.py` has the rules."""
