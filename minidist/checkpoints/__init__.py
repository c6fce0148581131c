"""The workshop of `minidist/checkpoint.py`: which elements lie where, files whole or not there."""
