"""The classroom: an exercise's points, and the one thing to look at next.

    python -m minidist.classroom grade lessons/04_ring_all_reduce
    python -m minidist.classroom class submissions/ --csv points.csv
    python -m minidist.classroom release OUT

A lesson is a folder with `exercise.py` (the skeleton, which the student fills in), `test_exercise.py` (graded parts:
pytest tests with points) and `on_ranks.py` (what those tests let the ranks do). The student's program runs only on
ranks and is never imported by the process that grades. That process decides what a part earns, from the arrays that
came back and from the messages that went through it. A rank's own output or exit status earns nothing.

In the process that grades:

    submission.py     run a program on ranks, say in words what went wrong
    wires.py          what it runs on: the router, or MPI
    router.py         the wire without MPI: every message goes through here, is counted, ordered and perhaps spoiled
    sense.py          does what a rank says make sense?
    meaning.py        does a program depend on luck, do its messages mean anything?
    diagnose.py       from a wrong array, which rank's part is missing or was added twice
    training.py       from a wrong shard or loss, what it holds instead; serial training is the truth
    parts.py          what declarations of parts are made of: ranks' results, the names of wrong values
    checks.py         checks that the parts of several lessons share
    sharded.py        the same for lessons that train with ZeRO: layers, buckets and shards, what may be sent
    pytest_plugin.py  points for tests, and the fixture `submission`
    grade.py          one submission, in a pytest of its own
    work.py           students' copies of the lessons
    index.py          the page over them: a tour, the map of the course, its paths, a student's points
    notebook.py       `%%mpirun`: a cell on ranks
    brought.py        what such a cell brings along from the notebook
    unloaded.py       what IPython says of `%%mpirun` before the extension is loaded
    lesson.py         in a lesson's notebook: gaps that are checked, predictions that are kept
    watch.py          what notebooks note about a run
    drawing.py        what the pictures of all lessons share: panels, legends, the words below a picture
    reports.py        for people, for Gradescope and as JUnit

For an instructor:

    release.py        a student's edition, and autograders for Gradescope
    kit/              what these get in addition to the project: scripts, and instructions for assistants
    autograder.py     in Gradescope's container: results whatever is submitted
    handed_in.py      which file is which lesson's exercise, among the files that a browser or an LMS leaves
    roster.py         the students of a class, and the owner of each file
    course.py         a class: a row for each student, a column for each lesson
    feedback.py       a page for each student

Where ranks come from, and on them:

    nursery.py        a process that has imported what ranks need, and forks them in milliseconds
    sandbox.py        its namespaces, where the machine allows them
    syscalls.py       system calls that could bypass the wire, which the kernel refuses to ranks
    limits.py         what a rank may use
    process.py        a rank of the router
    ranks.py          run cases of the student's program; notice changed modules
    ranks_mpi.py      the same over MPI, counted below the student's Comm
    engines.py        what parts let the engines of several lessons do
    chapter.py        the chapter's functions, for the parts that do not ask for them; programs cannot import it
    source.py         a look at the program's text before it runs
    likeness.py       is part of it the chapter's code?
"""
