"""The classroom: an exercise's points, and the one thing to look at next.

    python -m minidist.classroom grade lessons/04_ring_all_reduce
    python -m minidist.classroom class submissions/ --csv points.csv
    python -m minidist.classroom release OUT

A lesson is a folder with `exercise.py` (the skeleton, which the student fills in), `test_exercise.py` (graded parts:
pytest tests with points) and `on_ranks.py` (what those tests let the ranks do). The student's program runs only on
ranks and is never imported by the process that grades. That process decides what a part earns, from the arrays that
came back and from the messages that went through it. A rank's own output or exit status earns nothing.

    grading/          runs a program on ranks, and says what its parts earn
    notebook/         what a lesson's notebook uses, and the pages over all lessons
    course/           for an instructor: editions to hand out, files that come in, a class's points
    work.py           students' copies of the lessons
    autograder.py     in Gradescope's container: results whatever is submitted
"""

from minidist.system import former

former.find_modules()
