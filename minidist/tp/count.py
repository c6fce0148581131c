"""What a rank's layers keep with dropout."""

from minidist.command import Job
from minidist.engine import Engine

PAPERS_DROPOUT = 0.1


def count_with_dropout(job: Job, engine: Engine) -> dict[str, int]:
    """Chapters train without dropout, the papers with it: one more forward on this rank counts what the papers keep."""
    limited = job.files.device_memory is not None  # it may have no room for one more forward
    if job.model.dropout > 0 or job.layout.cp > 1 or limited:
        return {}
    x, y = job.batch(job.training.steps, job.training.micro_batch)
    return {"layer_activations_with_dropout": engine.count_layer_bytes(x, y, PAPERS_DROPOUT)}
