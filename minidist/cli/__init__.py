"""The habits of the command line: options, progress, the doctor, and the notebook's magic."""
