"""Progress: one changing line at a terminal, even if mpirun is in between, and plain lines elsewhere."""

import os
import sys
from pathlib import Path
from typing import TextIO

from minidist.mpi.output import Output
from minidist.system import processes, unix


class Progress:
    """A bar if there is a terminal, else plain lines."""

    def __init__(self, steps: int, shown: bool, label: str = "step") -> None:
        self.steps, self.shown, self.label, self.bar = steps, shown, label, None
        self.screen = terminal() if shown else None
        if self.screen is None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(label), MofNCompleteColumn(), BarColumn(20), TextColumn("{task.description}"))
        self.bar = Bar(*columns, console=Console(file=self.screen, force_terminal=True), transient=True)
        self.task = self.bar.add_task("", total=steps)
        self.bar.start()
        processes.to_undo.append(self.bar.stop)  # shows the cursor again

    def update(self, step: int, loss: float, milliseconds: float, scale: float) -> None:
        """Show that `step` steps are done. scale: the loss scale; 1: losses are not scaled."""
        text = f"loss {loss:.3f}  {milliseconds:.0f} ms" + f"  loss scale {scale:g}" * (scale != 1)
        if self.bar:
            self.bar.update(self.task, completed=step, description=text)
        elif self.shown and (step % max(1, self.steps // 10) == 0 or step == self.steps):
            print(f"{self.label} {step:>{len(str(self.steps))}}/{self.steps}  {text}", flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar and self.screen:
            self.bar.stop()
            self.screen.close()
            self.bar = None


LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun"}


def terminal() -> TextIO | None:
    """Open the terminal that shows this program's output, if there is one and it can move its cursor.

    Under mpirun, a rank's standard output is a pipe to mpirun. If mpirun's own is a terminal, that is the one. (Only on
    Linux.) A terminal of another user or of another container does not count.
    """
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        if sys.stdout.isatty():
            return _opened(unix.terminal_of(sys.stdout.fileno()), os.fstat(sys.stdout.fileno()))
        process = os.getpid()
        while process > 1:
            name = Path(f"/proc/{process}/comm").read_text().strip()
            if name in LAUNCHERS:
                output = f"/proc/{process}/fd/1"
                path = os.readlink(output)
                return _opened(path, os.stat(output)) if path.startswith(("/dev/pts/", "/dev/tty")) else None
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])  # its parent
    except OSError:
        pass
    return None


def _opened(path: str, expected: os.stat_result) -> TextIO | None:
    """The terminal at a path, if it is the expected one: every container may have one of that name."""
    screen = Output(open(path, "wb"), encoding="utf-8", errors="replace")  # noqa: SIM115  (until close)
    if os.path.samestat(os.fstat(screen.fileno()), expected) and screen.isatty():
        return screen
    screen.close()
    return None


class StatusLine:
    """One line of progress: rewritten if there is a terminal, else now and then a new one."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.next, self.text = shown, 0.0, ""
        self.screen = terminal() if shown else None

    def show(self, text: str, progress: float) -> None:
        """progress: from 0 to 1; without a terminal there is a line for each tenth."""
        if self.screen and text != self.text:
            self.screen.write(f"\r\033[K{text}")
            self.screen.flush()
        elif self.shown and not self.screen and progress >= self.next:
            print(text, flush=True)
            self.next = (int(10 * progress) + 1) / 10
        self.text = text

    def clear(self) -> None:
        """Take the line away for a while, so that something else can be printed."""
        if self.screen:
            self.screen.write("\r\033[K")
            self.screen.flush()
            self.text = ""

    def close(self) -> None:
        """Take the line away for good: nothing is shown after that."""
        if self.screen:
            self.clear()
            self.screen.close()
        self.shown, self.screen = False, None
