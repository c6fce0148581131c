"""What the clocks of a pipeline's ranks say, drawn below its report."""

from minidist.cli.paths import say_written
from minidist.command import Job
from minidist.mpi.comm import Comm
from minidist.pp.schedules import SCHEDULES
from minidist.pp.timeline import Timeline, print_timelines, write_trace


def show_clocks(comm: Comm, timeline: Timeline, job: Job, trace: str | None) -> None:
    """Draw what the clocks of the first pipeline's ranks say, and write the trace of all if there is to be one. All
    ranks must call."""
    timelines, layout = comm.gather_object(timeline), job.layout
    if not timelines or not timelines[0].spans:
        return
    pipelines = [range(layout.ranks)] if layout.replicas else layout.groups("pipeline")
    if not job.files.quiet:
        flushes = SCHEDULES[layout.schedule].flushes
        what = "Last step" if flushes else "Beginning"
        print(f"\n{what}, simulated time: F forward, B input and W weight gradient")
        print_timelines("", [timelines[rank] for rank in pipelines[0]], not flushes, layout.chunks)
    if trace:
        write_trace(trace, timelines, pipelines)
        if not job.files.quiet:
            say_written(trace=trace)
