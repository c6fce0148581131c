"""Ranks of one process under pdb and debugpy: breakpoints stop in every rank, and a step stays in its rank."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from minidist import zero3

ROOT = Path(__file__).parents[2]
SMALL = "--steps 1 --layers 1 --width 8 --heads 2 --context 8 --batch 4 --warmup 1 --ranks 4"
TINY = SMALL.split()
LINES = Path(zero3.__file__).read_text().splitlines()
GATHERS = next(number for number, line in enumerate(LINES, start=1) if "ring.all_gather(" in line)
RETURNS = GATHERS + 1  # from parameters_of
TOLD = "the rank that Comm knows: "


def pdb(program: list[str], *commands: str) -> str:
    """What is said in a session with these commands, to a pipe: nothing may stay in a buffer."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=300,
        env=buffered | {"NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.stderr == ""
    return done.stdout


def stops(said: str) -> list[tuple[int, int]]:
    """(the rank in the prompt, the rank that Comm knows) of each stop that asked."""
    return [(int(a), int(b)) for a, b in re.findall(rf"\(Pdb, rank (\d)\) {TOLD}(\d)", said)]


TELL = f"!print(f'{TOLD}{{self.comm.rank}}')"
needs_pdb = pytest.mark.skipif(sys.version_info[:3] == (3, 13, 0), reason="its pdb takes no program's options")


@needs_pdb
def test_a_breakpoint_of_pdb_stops_in_every_rank() -> None:
    at = f"b minidist/zero3.py:{GATHERS}"
    said = pdb(["-m", "pdb", "-m", "minidist.zero3", *TINY], at, *["c", TELL] * 4, "cl 1", "c", "q")
    assert stops(said) == [(rank, rank) for rank in range(4)]
    assert "total sent" in said  # it has gone on to its end


@needs_pdb
def test_a_step_over_a_message_goes_on_in_the_same_rank() -> None:
    at = f"tbreak minidist/zero3.py:{GATHERS}"
    said = pdb(["-m", "pdb", "-m", "minidist.zero3", *TINY], at, "c", *["n", "n", TELL] * 2, "q")
    assert stops(said) == [(0, 0)] * 2
    assert f"zero3.py({RETURNS})parameters_of()" in said


def test_breakpoint_stops_in_every_rank(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from minidist.exchange import doors\n"
        "def main(comm, prepared):\n"
        "    comm.barrier()\n"
        "    breakpoint()\n"
        "    comm.barrier()\n"
        "doors.run(main, lambda comm: None, 'program')\n"
    )
    tell = f"!print(f'{TOLD}{{comm.rank}}')"
    said = pdb([str(tmp_path / "program.py"), "--ranks", "3"], *[tell, "c"] * 3)
    assert sorted(stops(said)) == [(rank, rank) for rank in range(3)]


@needs_pdb
def test_the_session_in_the_readme_is_a_real_one() -> None:
    readme = (ROOT / "minidist/README.md").read_text()
    [(line, session)] = re.findall(r"^\$ python (-m pdb .*)\n((?:.*\n)*?)```", readme, re.MULTILINE)
    prompt = r"^(\(Pdb.*?\) )(.*)\n"
    said = pdb(line.split(), *[command for _, command in re.findall(prompt, session, re.MULTILINE)])
    assert said.replace(f"{ROOT}/", "") == re.sub(prompt, r"\1", session, flags=re.MULTILINE)


# ---- debugpy ---------------------------------------------------------------------------------------------------------


class Client:
    """As much of a client of the Debug Adapter Protocol as it takes."""

    def __init__(self, port: int) -> None:
        self.line = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.file, self.number, self.events = self.line.makefile("rb"), 0, list[dict[str, Any]]()

    def read(self) -> dict[str, Any]:
        length = 0
        while (header := self.file.readline().strip()) or not length:
            if header.lower().startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        message: dict[str, Any] = json.loads(self.file.read(length))
        return message

    def tell(self, command: str, **arguments: Any) -> int:
        self.number += 1
        message = {"seq": self.number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self.line.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self.number

    def ask(self, command: str, **arguments: Any) -> Any:
        number = self.tell(command, **arguments)
        while (message := self.read()).get("request_seq") != number:
            self.events.append(message)
        assert message["success"], message
        return message.get("body")

    def wait_for(self, event: str) -> dict[str, Any]:
        while True:
            for message in self.events:
                if message.get("event") == event:
                    self.events.remove(message)
                    return message
            self.events.append(self.read())

    def stop(self) -> tuple[int, str, int, int]:
        """Wait for a stop: (thread, its name, line, the rank that Comm knows)."""
        thread = self.wait_for("stopped")["body"]["threadId"]
        [name] = [found["name"] for found in self.ask("threads")["threads"] if found["id"] == thread]
        frame = self.ask("stackTrace", threadId=thread, levels=1)["stackFrames"][0]
        rank = self.ask("evaluate", expression="self.comm.rank", frameId=frame["id"], context="watch")["result"]
        return thread, name, frame["line"], int(rank)


@contextmanager
def under_debugpy() -> Iterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", str(port), "--wait-for-client"]
    program = subprocess.Popen(
        [*command, "-m", "minidist.zero3", *TINY], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        client = None
        while client is None:
            assert program.poll() is None
            with suppress(ConnectionRefusedError):
                client = Client(port)
        client.ask("initialize", adapterID="test", linesStartAt1=True, pathFormat="path")
        client.tell("attach", justMyCode=False)
        client.wait_for("initialized")
        yield client
        client.line.close()
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()


@pytest.mark.slow
def test_debugpy_stops_in_every_rank_and_steps_in_one() -> None:
    pytest.importorskip("debugpy", reason="VS Code's debugger is not installed")
    with under_debugpy() as client:
        at = {"path": zero3.__file__}
        client.ask("setBreakpoints", source=at, breakpoints=[{"line": GATHERS}])
        client.ask("configurationDone")
        for rank in range(4):
            thread, name, line, found = client.stop()
            assert (name, line, found) == (f"rank {rank}", GATHERS, rank)
            if rank < 3:
                client.ask("continue", threadId=thread)
        client.ask("setBreakpoints", source=at, breakpoints=[])
        for step in range(3):  # the last rank's all-gather waits for the others
            client.ask("next", threadId=thread)
            thread, name, line, found = client.stop()
            assert (name, found) == ("rank 3", 3), step
        client.ask("continue", threadId=thread)
        client.wait_for("terminated")
