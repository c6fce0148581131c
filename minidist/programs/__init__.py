"""Each chapter as a program: one value with its options, its engine and its papers' promises (`chapter.py`)."""
