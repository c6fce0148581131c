"""Checkpoints (`checkpoint.py`): which elements lie where, and files that are whole or absent."""
