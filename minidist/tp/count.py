"""What a rank's layers keep with dropout."""

from minidist.command import Job
from minidist.engine import Engine

PAPERS_DROPOUT = 0.1


def count_with_dropout(job: Job, engine: Engine) -> dict[str, int]:
    """Chapters train without dropout, the papers with it: one more forward on this rank counts what the papers keep."""
    options = job.options
    if (
        options.dropout > 0 or job.layout.cp > 1 or options.device_memory is not None
    ):  # a limited device may have no room for one more forward
        return {}
    x, y = job.corpus.batch(options.batch // options.accumulate, options.context, key=(options.seed, options.steps))
    return {"layer_activations_with_dropout": engine.count_layer_bytes(x, y, PAPERS_DROPOUT)}
