"""MapReduce's workshop: what the chapter `minidist/mapreduce.py` needs and its reader may skip."""
