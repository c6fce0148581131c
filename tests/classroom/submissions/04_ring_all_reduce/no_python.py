"""Was saved in the middle of a line."""
# keeps: nothing
# says: no_python.py is no Python: line 5: '\(' was never closed

def reduce_scatter(comm, x, out=
