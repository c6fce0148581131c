"""The text that is trained on, and batches of it."""
