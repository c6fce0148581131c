"""What any layout of ranks holds and sends: pure functions of a frozen description of a run, without NumPy."""
