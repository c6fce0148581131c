"""Each chapter as a program: one value with its options and its engine (`chapter.py`)."""
