"""The workshop of ZeRO-R: what the chapter `minidist/zero_r.py` needs and its reader may skip."""
