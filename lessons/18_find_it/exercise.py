"""Exercise 18: find it. Six checks, each as small as it can be: it fails on a broken system and passes on healthy ones.

Fill in the six functions; `pytest lessons/18_find_it` says how many points they earn. Each gets a handle, `run`, on a
system that trains a small GPT. If the system has a bug of the kind named, the check raises AssertionError, as `assert`
does; otherwise it returns. Each check meets two broken systems or three, with different bugs of its kind, and as many
healthy ones and one more: other seeds, odd batches, states that are sharded in a way of their own. It must find all of
these bugs. Each system is in a process of its own, and an alarm without a run counts for nothing. For each part that
you lose, the grade names a call, such as given.drawn('norms', 7, 1), that opens the system in the notebook.

    run.axes        {"tp": (1, 2), "micro": (1, 2, 4)}: numbers of ranks, and of micro-batches if they can be chosen
    run.axis        "tp": of ranks; dp, tp, cp, ep (experts) or pp (stages)
    run.batch       sequences in a step, if you name no other number
    run.precision   in which its users train; each system also trains in "fp64"
    run.zero        ZeRO's stage, or 0; run.shards: states are sharded over this many ranks at most
    run.clip        the largest norm of a gradient, or 0

    run(layout, optimizer=, precision=, seed=, steps=, batch=, own_rows=, resume_at=) trains afresh. Without arguments
    it is one step of AdamW in float64 on one rank. layout is a dict, {"tp": 2, "micro": 4}; an axis that it does not
    name has its first number. The docstring of `Handle` has all arguments. The result has losses, gradients, norms,
    bytes, memory, parameters and scales (see `Result`).

A run costs ranks x steps; the same run costs nothing a second time. The last two points are for checks that cost at
most 60 in total; of each check, the system counts on which it costs most. A plain set, which compares one rank with two
and steps as little as it can, costs 56. Of these, 3 each are for gradients, norms and memory, and 7 for sizes; 24 for
precision (8 steps in float64 on one rank, and in run.precision on two), 16 for a checkpoint.
"""

from minidist.bugs.handle import Handle


def check_gradients(run: Handle) -> None:
    """The gradients are wrong on more ranks than one. AdamW may hide it: look before the update."""
    raise NotImplementedError


def check_norms(run: Handle) -> None:
    """The gradients are right. The norm by which they are clipped is not, on some rank."""
    raise NotImplementedError


def check_sizes(run: Handle) -> None:
    """Gradients are right with a batch and a number of ranks that are usual in tests, and wrong with others."""
    raise NotImplementedError


def check_memory(run: Handle) -> None:
    """All results are right. ZeRO is to shard states over ranks, and one of them is not sharded.

    Kinds in `memory` are "optimizer" (from stage 1 on), "gradients" (from stage 2 on) and "parameters" (stage 3)."""
    raise NotImplementedError


def check_precision(run: Handle) -> None:
    """In float64 all is right. In the precision in which users train, results are far off, or ranks disagree.

    Without any bug, losses differ, too: two bytes round, and a step whose gradients overflow is skipped. Some healthy
    systems skip all of their first few steps, and with SGD the last loss may jump up again: ask for the lowest one of
    eight steps. A run that skips all of its steps has no gradients, and nan for norms."""
    raise NotImplementedError


def check_checkpoint(run: Handle) -> None:
    """All is right until a run is resumed from a checkpoint."""
    raise NotImplementedError
