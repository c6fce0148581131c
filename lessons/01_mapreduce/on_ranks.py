"""What the graded parts let the ranks do with a student's functions. No points are given here."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.chapter import functions
from minidist.mpi.comm import Comm

# The lesson's own functions take the place of what a function calls.
given = functions("answers", ("partition", "map_task", "shuffle", "merge", "reduce_task"))
STANDS_ON = {
    **dict.fromkeys(("partition", "shuffle", "merge"), ()),
    "map_task": ("partition",),
    "reduce_task": ("merge",),
}


def text_or_type(value: Any) -> str:
    """A text as it is; of anything else its type, in brackets."""
    return str(value) if isinstance(value, str) else f"<{type(value).__name__}>"


def texts(value: Any) -> list[str] | str:
    """The texts in a list or tuple; of anything else the type."""
    return [text_or_type(item) for item in value] if isinstance(value, list | tuple) else type(value).__name__


def groups(made: Any) -> list[list[Any]] | str:
    """[key, values] for everything that a merge yields; the type of what is no merge."""
    if not isinstance(made, Iterable) or isinstance(made, str):
        return type(made).__name__
    return [[text_or_type(key), texts(list(values))] for key, values in made]


# ---- partition -------------------------------------------------------------------------------------------------------


def call_partition(comm: Comm, exercise: ModuleType, keys: list[str], reducers: int, function: str) -> list[Any]:
    """For each key, what the function says, and what Python's own hash would."""
    found = []
    for key in keys:
        r = getattr(exercise, function)(key, reducers)
        number = isinstance(r, int | np.integer) and not isinstance(r, bool)
        found.append([int(r) if number else type(r).__name__, hash(key) % reducers])
    return found


# ---- map_task --------------------------------------------------------------------------------------------------------


class Numbered:
    """A job whose map emits each word with its place: ("dog", "a.txt:3") for the third word of all lines."""

    def __init__(self, combine: str) -> None:
        self.emitted = 0
        combiners = {"": None, "all": self.all, "joined": self.joined, "in two": self.in_two}
        self.combine: Callable[[str, list[str]], Iterable[str]] | None = combiners[combine]

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        for word in line.split():
            self.emitted += 1
            yield word, f"{document}:{self.emitted}"

    def all(self, key: str, values: Iterable[str]) -> list[str]:
        return list(values)

    def joined(self, key: str, values: Iterable[str]) -> Iterator[str]:
        yield "+".join(values)

    def in_two(self, key: str, values: Iterable[str]) -> Iterator[str]:
        values = list(values)
        yield "+".join(values[::2])
        yield from filter(None, ["+".join(values[1::2])])


def call_map(comm: Comm, exercise: ModuleType, lines: list[str], combine: str, reducers: int) -> list[str] | str:
    return texts(exercise.map_task(Numbered(combine), "a.txt", lines, reducers))


# ---- shuffle ---------------------------------------------------------------------------------------------------------


def call_shuffle(comm: Comm, exercise: ModuleType, regions: list[str], function: str) -> list[Any] | str:
    """The runs that a rank gets, each as the bytes of its text."""
    found = texts(getattr(exercise, function)(comm, regions))
    return found if isinstance(found, str) else [np.frombuffer(text.encode(), np.uint8) for text in found]


def call_receive(comm: Comm, exercise: ModuleType, text: str) -> str:
    """Everyone's text, one rank to the right."""
    data = np.frombuffer(text.encode(), np.uint8)
    right = (comm.rank + 1) % comm.size
    comm.send(np.array([data.size]), right)
    comm.send(data, right)
    return text_or_type(exercise.receive_text(comm, (comm.rank - 1) % comm.size))


# ---- merge -----------------------------------------------------------------------------------------------------------


def call_merge(comm: Comm, exercise: ModuleType, runs: list[list[list[str]]], function: str) -> list[list[Any]] | str:
    return groups(getattr(exercise, function)([[(key, value) for key, value in run] for run in runs]))


def call_merge_slowly(comm: Comm, exercise: ModuleType, runs: list[list[list[str]]]) -> Any:
    """Each of the first three keys, and how many pairs of each run have been read by then; the type of no merge."""
    read = Counter[int]()

    def reading(number: int) -> Iterator[tuple[str, str]]:
        for key, value in runs[number]:
            read[number] += 1
            yield key, value

    made = exercise.merge([reading(number) for number in range(len(runs))])
    if not isinstance(made, Iterable):
        return type(made).__name__
    return [[text_or_type(key), [read[number] for number in range(len(runs))]] for key, _ in islice(made, 3)]


# ---- reduce_task -----------------------------------------------------------------------------------------------------


EARLIER = "the output of an earlier attempt\n"


class Stopped(Exception):
    """What a reduce raises that is to fail."""


class Joining:
    """A job whose reduce puts a key's values together, and for a key of more than two values has a second text.

    `during` is called with the number of each key, from 1, before anything is returned for it.
    """

    def __init__(self, during: Callable[[int], None] = lambda number: None) -> None:
        self.keys, self.during = 0, during

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        values = list(values)
        self.keys += 1
        self.during(self.keys)
        yield "+".join(values)
        if len(values) > 2:
            yield f"{len(values)} values"


def output(path: Path) -> str | None:
    """What is in the file; if there is none, in the folder's only file or equal files: a part asks for one thing."""
    if path.exists():
        return path.read_bytes().decode(errors="replace")
    others = {file.read_bytes().decode(errors="replace") for file in path.parent.iterdir() if file.is_file()}
    return others.pop() if len(others) == 1 else None


def attempt(exercise: ModuleType, runs: Sequence[str], path: Path, worker: int, fails_at: int = 0) -> None:
    """reduce_task, whose job fails at a key."""

    def stop(number: int) -> None:
        if number == fails_at:
            raise Stopped

    with suppress(Stopped):
        exercise.reduce_task(Joining(stop), runs, path, worker)


def fresh_path(folder: str) -> Path:
    return Path(tempfile.mkdtemp(dir=folder)) / "part-00000"


def call_reduce(comm: Comm, exercise: ModuleType, runs: list[str]) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        path = fresh_path(folder)
        attempt(exercise, runs, path, 1)
        return output(path)


def call_commit(comm: Comm, exercise: ModuleType, runs: list[str]) -> dict[str, Any]:
    """What another process sees at `path`."""
    with tempfile.TemporaryDirectory() as folder:
        path, seen = fresh_path(folder), list[bool]()
        exercise.reduce_task(Joining(lambda number: seen.append(path.exists())), runs, path, 1)
        failed = fresh_path(folder)
        attempt(exercise, runs, failed, 1, fails_at=3)
        earlier = fresh_path(folder)
        earlier.write_text(EARLIER)
        with open(earlier) as reader:
            attempt(exercise, runs, earlier, 2)
            read = reader.read()
        return {"too early": any(seen), "after": path.exists(), "failed": failed.exists(), "changed": read != EARLIER}


def call_twice(comm: Comm, exercise: ModuleType, runs: list[str], how: str) -> str | None:
    """What is there in the end, however often the task has been done."""
    with tempfile.TemporaryDirectory() as folder:
        path = fresh_path(folder)
        match how:
            case "once":
                attempt(exercise, runs, path, 1)
            case "by two workers, one after the other":
                attempt(exercise, runs, path, 1)
                attempt(exercise, runs, path, 2)
            case "by the same worker again, after it has failed":
                attempt(exercise, runs, path, 1, fails_at=3)
                attempt(exercise, runs, path, 1)
            case "by two workers at the same time":
                other = Joining(lambda number: attempt(exercise, runs, path, 2) if number == 2 else None)
                exercise.reduce_task(other, runs, path, 1)
        return output(path)


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def call_commit_lines(comm: Comm, exercise: ModuleType, lines: list[str]) -> dict[str, Any]:
    """The same of the notebook's `commit`: what comes of it, what is seen meanwhile, and after a failure."""

    def some(during: Callable[[], None] = lambda: None) -> Iterator[str]:
        yield lines[0]
        during()
        yield from lines[1:]

    def stop() -> None:
        raise Stopped

    with tempfile.TemporaryDirectory() as folder:
        path, both, failed, seen = fresh_path(folder), fresh_path(folder), fresh_path(folder), list[bool]()
        exercise.commit(some(lambda: seen.append(path.exists())), path, 1)
        once = output(path)
        exercise.commit(some(), path, 2)
        exercise.commit(some(lambda: exercise.commit(some(), both, 2)), both, 1)
        with suppress(Stopped):
            exercise.commit(some(stop), failed, 1)
        return {
            "too early": any(seen),
            "after": path.exists(),
            "failed": failed.exists(),
            "once": once,
            "twice": output(path),
            "both": output(both),
        }
