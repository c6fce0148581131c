"""On a rank: run a student's program on cases, and bring back what it returned.

Nothing here decides about points. A rank's inputs are known to that rank alone, so a right result can only come from
messages. Over MPI see ranks_mpi.py, else process.py.
"""

import copy
import ctypes
import gc
import importlib.util
import inspect
import linecache
import operator
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from minidist.classroom.grading import limits
from minidist.launch.target_function import find_function
from minidist.mpi.comm import Comm

Array = np.ndarray
NOT_THE_PROGRAMS = ("<frozen importlib", linecache.__file__, tracemalloc.__file__)
LATE = 1 << 15  # at most this many bytes count as not the program's: any code may claim to be a module's
late: list[Any] = []  # a witness, how many modules and source lines there were, and the bytes of those that came late
Cases = list[tuple[int, dict[str, Any]]]  # (number of ranks, arguments) of each
note: list[Callable[[str], None]] = [lambda where: None]  # says where in a case this rank is: "at block0"; "": nowhere


def run_cases(
    comm: Comm, job: dict[str, Any], inputs: Sequence[Any], watch: Callable[[Comm], Comm] = lambda comm: comm
) -> dict[str, Any]:
    """Call the job's target(comm, student's module, this rank's input, **arguments) for each case, on its first ranks.

    job:  program, source    the student's file: its path, and the bytes in it
          target             "path/to/on_ranks.py:function"
          asked              what must come from the student's file: "reduce_scatter", "ZeRO3.reduce"
          hidden             modules that it cannot import (forked ranks cannot import them anyway)
          cases              (number of ranks, arguments) of each
          guarded            whether a request without a wait() is a mistake
          memory             bytes that the rank may take from now on; 0: no limit

    inputs are this rank's, one for each case. Returns the result of each case, and the names that the program has
    changed.
    """
    run, compare = find_function(job["target"]), changed  # before the program can replace them
    ledger, release, check = comm.ledger, comm.ledger.open_requests.clear, comm.ledger.check_requests
    given = stand_ins(sys.modules["on_ranks"], job["asked"])
    before = taken.pop() if taken else fingerprint()
    if job["memory"]:
        limits.confine(job["memory"])
    student = load(job["program"], job["source"], job["asked"])
    functions = {name: value for name, value in given.items() if "." not in value.__qualname__}  # and no methods
    vars(student).update({name: value for name, value in functions.items() if name in vars(student)})
    values: list[Any] = []
    for number, (n, arguments) in enumerate(job["cases"]):
        group = comm.split(int(comm.rank >= n), comm.rank)
        values.append(None)
        if comm.rank < n:
            ledger.phase = "main"
            values[-1] = run(watch(group), student, inputs[number], **arguments)
            if job["guarded"]:
                check()
            release()
    found = compare(before)
    taken.append(before)  # freeing it would write to every object in it
    return {"values": values, "changed": found}


def stand_ins(on_ranks: ModuleType, asked: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The lesson's own functions (`given`) that replace the student's: all if none is asked for, but never one that is
    asked for. If STANDS_ON in on_ranks.py says what a function may call, only these: two functions cannot each leave
    the work to the other."""
    given, stands_on = vars(on_ranks).get("given", {}), vars(on_ranks).get("STANDS_ON", {})
    names = {name.rpartition(".")[2] for name in asked}
    allowed = {other for name in names for other in stands_on.get(name, given)} if names else {*given}
    for name in [*given]:
        if name in names or name not in allowed:
            del given[name]
    return given


class NotTheirs(Exception):
    """What a part asks for is not the student's own."""


def load(program: str, source: bytes, asked: Sequence[str]) -> ModuleType:
    """Load the student's file as a module. Each function that is asked for must be its own."""
    code = compile(source, program, "exec", dont_inherit=True)
    lines = source.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[program] = (len(source), None, lines, program)  # for tracebacks: the file is not here
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("exercise", loader=None))  # type: ignore
    module.__file__ = program
    sys.modules["exercise"] = module
    owner = own_codes(code)
    exec(code, vars(module))
    for name in asked:
        check_own(module, name, owner)
    return module


def own_codes(code: CodeType) -> set[CodeType]:
    """The code object of a file, and all code objects inside it."""
    inner = [own_codes(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {code}.union(*inner)


def check_own(module: ModuleType, name: str, codes: set[CodeType]) -> None:
    holder, _, last = name.rpartition(".")
    place = vars(module).get(holder) if holder else module
    found = inspect.getattr_static(place, last, None) if place is not None else None
    function = inspect.unwrap(found) if callable(found) else found
    if holder and not inspect.isclass(place):
        raise NotTheirs(f"has no class {holder}")
    if function is None:
        raise NotTheirs(f"does not define {name}")
    if not isinstance(function, FunctionType) or function.__code__ not in codes:
        raise NotTheirs(f"has {name} from elsewhere: write it in the file itself")


def returned(value: Any) -> Any:
    """A student's result in a form that can be sent: a numeric array as it is, else the name of its type."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return np.array(value)  # of a subclass, the plain array
    return type(value).__name__


def number(value: Any) -> Any:
    """A number as it is, of Python or NumPy; of anything else the type."""
    is_array = isinstance(value, np.ndarray | np.generic) and value.shape == () and value.dtype.kind in "iuf"
    return float(value) if is_array or type(value) in (int, float) else type(value).__name__


def whole(value: Any) -> Any:
    """A whole number as it is; of anything else the type."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if is_whole else type(value).__name__


def told(value: Any, texts: bool = False) -> Any:
    """What a function returned: numbers, numeric arrays and truth values as they are, of tuples, lists and dictionaries
    what is in them, and texts if there may be `texts`; of anything else the type."""
    if isinstance(value, tuple | list):
        return [told(each, texts) for each in value]
    if isinstance(value, dict):
        return {str(name): told(each, texts) for name, each in value.items()}
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if texts and isinstance(value, str):
        return str(value)
    found = number(value)
    return returned(value) if isinstance(found, str) else found


def copied(mine: Any) -> list[Any]:
    """A rank's arguments, or its only one, with copies of the arrays."""
    arguments = mine if isinstance(mine, list | tuple) else [mine]
    return [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]


def calls(
    function: str = "", told: Callable[[Any], Any] = told, on_ranks: Collection[str] | None = None
) -> Callable[..., dict[str, Any]]:
    """What a part lets the ranks do: call this function, or the one that a case names, with a rank's arguments. It
    brings back what was returned, as it is `told`, and what became of the arrays. on_ranks: the functions that take
    comm first; None: all."""

    def call(comm: Comm, exercise: ModuleType, mine: Any, function: str = function, **more: Any) -> dict[str, Any]:
        handed = copied(mine)
        first = [comm] if on_ranks is None or function in on_ranks else []
        value = getattr(exercise, function)(*first, *handed, *more.values())
        return {"returned": told(value), "handed": [each for each in handed if isinstance(each, np.ndarray)]}

    return call


def answers(
    function: str = "",
    told: Callable[[Any], Any] = told,
    make: Callable[..., Sequence[Any]] = lambda *arguments: arguments,
    raises: str = "",
) -> Callable[..., list[Any]]:
    """What a part lets a rank do: call this function, or the one that a case names, once for each list of arguments in
    the rank's input, as they are after `make`. It brings back what was returned, as it is `told`; if there was an
    exception of a type that is called `raises`, that name."""

    def answer(exercise: ModuleType, function: str, arguments: Sequence[Any]) -> Any:
        try:
            value = getattr(exercise, function)(*make(*copy.deepcopy(arguments)))
        except Exception as error:
            if raises not in {kind.__name__ for kind in type(error).__mro__}:
                raise
            return raises
        found = told(value)
        return f"{found}, returned" if isinstance(value, Exception) else found

    def call(comm: Comm, exercise: ModuleType, mine: Sequence[Sequence[Any]], function: str = function) -> list[Any]:
        return [answer(exercise, function, arguments) for arguments in mine]

    return call


def peak_memory(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """(what the function returned, the most bytes that were allocated at a time while it ran).

    It runs twice, and the smaller peak counts: what only the first call allocates, and keeps, is no working memory.
    Each call gets fresh copies of the arrays.
    """
    peaks = []
    for _ in range(2):
        fresh = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
        tracemalloc.start()
        try:
            value = function(*fresh)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return value, min(peaks)


def arrays_held(witness: np.ndarray) -> int:
    """Bytes that were allocated since tracemalloc was started, arrays and all else. Modules that are imported late, and
    source lines that a look at the stack reads, are left out: they are not arrays, and small.

    witness: an array made since then, which does not count. If tracemalloc has lost it, its account was cleared.
    """
    if tracemalloc.get_object_traceback(witness) is None:
        raise RuntimeError("the account of memory was cleared: leave tracemalloc alone")
    at = weakref.ref(witness), (len(sys.modules), len(linecache.cache))
    if not late or late[0] is not at[0] or late[1] != at[1]:  # a look at all allocations takes long
        traces: Any = tracemalloc.take_snapshot().traces
        found = sum(
            nbytes
            for domain, nbytes, frames, *_ in traces._traces  # as they are: a list made of each would itself be traced
            if domain != np.lib.tracemalloc_domain and frames[0][0].startswith(NOT_THE_PROGRAMS)
        )
        late[:] = *at, min(found, LATE)
    return tracemalloc.get_traced_memory()[0] - int(late[2]) - witness.nbytes


# ---- has the program changed the modules that test it? ---------------------------------------------------------------


class Marks(NamedTuple):
    """What some names referred to: look(key) for each key."""

    names: list[str]
    look: Callable[[Any], Any]
    keys: list[Any]
    found: list[Any]


class Fingerprint(NamedTuple):
    """What names referred to, and where the interpreter notes that this has changed."""

    modules: Marks
    inside: list[Marks]  # of the modules: their names, classes and functions
    memory: Array  # this process's, as one array of words of 8 bytes
    places: Array  # which of these words
    content: bytes  # of these words


VERSION = 24  # where a dict's version stands, which changes whenever the dict does (PEP 509)
taken: list[Fingerprint] = []  # one, if ranks are forked from a process that has taken it for all of them


def fingerprint() -> Fingerprint:
    """What the names in this project's modules, in the lesson's on_ranks.py and in some that they use refer to now."""
    others = ("on_ranks", "mpi4py.MPI", "numpy", "builtins", "tracemalloc")
    modules = {name: it for name, it in sys.modules.items() if name.split(".")[0] == "minidist" or name in others}
    marks: list[Marks] = []
    for name, module in modules.items():
        _mark(marks, name, name, vars(module))
    addresses = np.fromiter(places_of(marks), np.int64)
    first, last = int(addresses.min(initial=id(marks))), int(addresses.max(initial=id(marks)))
    words = (ctypes.c_int64 * ((last - first) // 8 + 1)).from_address(first)
    memory = np.frombuffer(memoryview(words), np.int64)
    places = (addresses - first) // 8
    whole = Marks([*modules], sys.modules.get, [*modules], [*modules.values()])
    return Fingerprint(whole, marks, memory, places, memory[places].tobytes())


def places_of(marks: Sequence[Marks]) -> Iterator[int]:
    """The addresses of dicts' versions and of functions' code; none on a Python that lacks them."""
    probe, code = {"a": 1}, fingerprint.__code__
    before = ctypes.string_at(id(probe) + VERSION, 8)
    probe["a"] = 2
    words = ctypes.string_at(id(fingerprint), 128)
    if (
        before == ctypes.string_at(id(probe) + VERSION, 8)
        or (at := words.find(id(code).to_bytes(8, sys.byteorder))) < 0
    ):
        return
    for mark in marks:
        owner = getattr(mark.look, "__self__", None)  # a module's dict, or the view of a class's
        if owner is None:
            yield from (id(function) + at for function in mark.keys)
        else:
            yield id(owner if isinstance(owner, dict) else gc.get_referents(owner)[0]) + VERSION


def _mark(marks: list[Marks], module: str, place: str, names: Mapping[str, Any]) -> None:
    """Mark the names in a module, or in a class of it, and the code of functions, which can be changed in place."""
    whole = [f"{place}.{name}" for name in names]
    marks.append(Marks(whole, names.get, [*names], [*names.values()]))
    functions: dict[str, FunctionType] = {}
    for name, value in zip(whole, [*names.values()], strict=True):
        function = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value  # in a cache or a static method
        if isinstance(function, FunctionType):
            functions[f"{name}.__code__"] = function
        elif inspect.isclass(value) and value.__module__ == module:
            _mark(marks, module, name, vars(value))
    code = operator.attrgetter("__code__")
    marks.append(Marks([*functions], code, [*functions.values()], [*map(code, functions.values())]))


def changed(before: Fingerprint, all=all, map=map, zip=zip, is_=operator.is_) -> list[str]:  # type: ignore[no-untyped-def]
    """The names that refer to something else than before, or to nothing.

    Every rank of every job checks ten thousand names. To look at each would count references, and so copy the memory of
    all these objects; the places where the interpreter notes changes are only read. This function uses C methods, and
    functions bound when it was defined, because the program may have replaced the builtins of these names.
    """
    modules, inside, memory, places, content = before
    return [
        name
        for names, look, keys, found in (
            [modules] if content and memory[places].tobytes() == content else [modules, *inside]
        )
        if not all(map(is_, map(look, keys), found))
        for name, key, value in zip(names, keys, found)
        if look(key) is not value
    ]
