"""What makes a program of each chapter: its options, its engine, its papers' promises, in one value (`chapter.py`)."""
