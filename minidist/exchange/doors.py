"""The two doors of a program on ranks: mpirun, and --ranks N in one process."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from minidist import UsageError
from minidist.mpi import environment, stops
from minidist.mpi.comm import Comm
from minidist.system import unix


def run(
    main: Callable[[Comm, Any], int | None],
    prepare: Callable[[Comm], Any],
    module: str,
    timeout: float = stops.TIMEOUT,
    can_go_on: stops.CanGoOn = lambda stopped, ranks: False,
) -> NoReturn:
    """Call `main(comm, prepare(comm))` on every rank, and end the process with the status that main returns.

    The ranks are those that mpirun has started, or --ranks of the command line in this process, or else one. module:
    what `python -m` names; the rest: as for `minidist.mpi.run.run`.
    """
    arguments, launched = sys.argv[1:], environment.rank() is not None
    ranks = environment.option_in(arguments, "--ranks", int)
    without_mpi = importlib.util.find_spec("mpi4py") is None or not unix.HERE
    more = "--ranks 4" if without_mpi else f"mpirun -n 4 python -m {module}, or --ranks 4"

    def refuse(comm: Comm) -> Any:
        raise UsageError("--ranks starts ranks in this process, and mpirun has started some: use one of them")

    def alone(comm: Comm, prepared: Any, main: Callable[[Comm, Any], int | None] = main) -> int | None:
        print(f"One rank. For more: {more}", file=sys.stderr)
        return main(comm, prepared)

    if ranks is not None and launched:
        prepare = refuse
    elif ranks is None and not launched:
        main = alone
    here = ranks if not launched and ranks is not None and 1 <= ranks <= environment.MOST_HERE else None
    if here or (not launched and without_mpi):
        from minidist.exchange import run as one_process

        one_process.run(main, prepare, here or 1, stops.timeout_in(arguments, timeout) if here else 0)
    from minidist.mpi import run as processes

    processes.run(main, prepare, timeout, can_go_on)
