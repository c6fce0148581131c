"""The classroom: an exercise's points, and the one thing to look at next.

    python -m minidist.classroom grade lessons/04_ring_all_reduce
    python -m minidist.classroom class submissions/ --csv points.csv

A lesson is a folder with `exercise.py` (the skeleton, which the student fills in), `test_exercise.py` (graded parts:
pytest tests with points) and `on_ranks.py` (what those tests let the ranks do). The student's program runs on ranks
alone and is never imported by the process that grades. What a part is worth is decided there, from arrays that came
back and from bytes that were counted at both ends of the wire: a rank's own word, output or exit status earns nothing.

    ranks.py          on a rank: run cases, count below the student's Comm, notice changed modules
    submission.py     in the grading process: start the ranks, say in words what went wrong
    router.py         the wire without MPI: every message goes through the grading process, which counts and orders it
    nursery.py        where ranks without MPI come from: a process that forks them in milliseconds
    process.py        such a rank
    diagnose.py       from a wrong array, which rank's part is missing or was added twice
    training.py       from a wrong shard, gradient or loss, what it holds instead; serial training is the truth
    pytest_plugin.py  points for tests, and the fixture `submission`
    grade.py          one submission, in a pytest of its own; a class of them
    reports.py        for people, for Gradescope, as JUnit and CSV

It is no sandbox: see README.md beside this file.
"""
