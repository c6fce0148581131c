"""A program's grade. In the process that grades:

    submission.py     run a program on ranks, say in words what went wrong
    wires.py          what it runs on: the router, or MPI
    router.py         the wire without MPI: every message goes through here, is counted, ordered and perhaps spoiled
    lines.py          the sockets and pipes between the router and its ranks
    sense.py          does what a rank says make sense?
    meaning.py        does a program depend on luck, do its messages mean anything?
    diagnose.py       from a wrong array, which rank's part is missing or was added twice
    training.py       from a wrong shard or loss, what it holds instead; serial training is the truth
    parts.py          what declarations of parts are made of: ranks' results, the names of wrong values
    checks.py         checks that the parts of several lessons share
    sharded.py        the same for lessons that train with ZeRO: layers, buckets and shards, what may be sent
    pytest_plugin.py  points for tests, and the fixture `submission`
    grade.py          one submission, in a pytest of its own
    reports.py        for people, for Gradescope and as JUnit

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
