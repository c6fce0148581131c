"""The command line: options, paths that a user names, tables, progress, the doctor, and the start of every program."""
