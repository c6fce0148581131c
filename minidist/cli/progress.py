"""How far the work is: one line that changes at a terminal, also one behind mpirun, and plain lines elsewhere."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO


class Progress:
    """A bar where there is a terminal, and plain lines where there is none."""

    def __init__(self, steps: int, shown: bool, label: str = "step") -> None:
        self.steps, self.shown, self.label, self.bar = steps, shown, label, None
        path = terminal() if shown else None
        if path is None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self.screen = open(path, "w", encoding="utf-8")  # noqa: SIM115  (until close)
        columns = (TextColumn(label), MofNCompleteColumn(), BarColumn(20), TextColumn("{task.description}"))
        self.bar = Bar(*columns, console=Console(file=self.screen, force_terminal=True), transient=True)
        self.task = self.bar.add_task("", total=steps)
        self.bar.start()

    def update(self, step: int, loss: float, milliseconds: float, scale: float) -> None:
        """Show that `step` steps are done."""
        text = f"loss {loss:.3f}  {milliseconds:.0f} ms  loss scale {scale:g}"
        if self.bar:
            self.bar.update(self.task, completed=step, description=text)
        elif self.shown and (step % max(1, self.steps // 10) == 0 or step == self.steps):
            print(f"{self.label} {step:>{len(str(self.steps))}}/{self.steps}  {text}", flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar:
            self.bar.stop()
            self.screen.close()
            self.bar = None


LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun"}


def terminal() -> str | None:
    """The terminal that this program's output ends at, if any.

    Under mpirun a rank's standard output is a pipe to mpirun, whose own may be a terminal: then it is that one. (Linux;
    elsewhere a rank under mpirun has no terminal.)
    """
    if sys.stdout.isatty():
        return os.ttyname(sys.stdout.fileno())
    process = os.getpid()
    try:
        while process > 1:
            name = Path(f"/proc/{process}/comm").read_text().strip()
            if name in LAUNCHERS:
                output = os.readlink(f"/proc/{process}/fd/1")
                return output if output.startswith(("/dev/pts/", "/dev/tty")) else None
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])  # its parent
    except OSError:
        pass
    return None


class StatusLine:
    """One line that says how far the work is: rewritten where there is a terminal, now and then a new one elsewhere."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.next, self.text = shown, 0.0, ""
        self.screen: TextIO | None = None
        if shown and (place := terminal()):
            with suppress(OSError):
                self.screen = open(place, "w", encoding="utf-8", errors="replace")  # noqa: SIM115  (until close)

    def show(self, text: str, progress: float) -> None:
        """progress: from 0 to 1; without a terminal there is a line for each tenth."""
        if self.screen and text != self.text:
            self.screen.write(f"\r\033[K{text}")
            self.screen.flush()
        elif self.shown and not self.screen and progress >= self.next:
            print(text, flush=True)
            self.next = (int(10 * progress) + 1) / 10
        self.text = text

    def close(self) -> None:
        """Take the line away."""
        if self.screen:
            self.screen.write("\r\033[K")
            self.screen.close()
