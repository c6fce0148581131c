"""Was saved in the middle of a line."""
# keeps: nothing
# says: While no_python.py was being imported, rank \d failed

def reduce_scatter(comm, x, out=
