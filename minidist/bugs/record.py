"""The bugs of record as data: what each one is, where it was reported, and the lines that rebuild it.

They stand in `minidist/claims/mutants/record/SYSTEM.toml`. A file may begin with tables [given.NAME]: changes that give
the healthy program a feature that it lacks, such as another optimizer. A bug has:

    name           one word, for the command line
    room           2 if lesson 18's table does not have it; 1 if not given
    system         where it was found
    repository     its repository on GitHub, or "" if the bug is our own
    thread         the number of its thread, #1 or PR #1; "" if the bug stands in code or in a document, or is our own
    title, year    of the thread, without labels in brackets, or of another source
    mistake        in one sentence
    says           what the thread says of its effect
    here           how it behaves here, if that differs from what the thread says
    chapter        the program that it breaks, by its name in minidist
    options        of the chapter and of serial training
    layout         options that only the chapter has
    ranks, other   how many ranks; and how many, if another number has to give the same losses
    micro          micro-batches, if another number of them has to give the same losses
    precision      of the runs that train as users do; float32 if not given
    adam           false if another optimizer takes Adam's place; then SGD cannot, and its check is left out
    given          features that the healthy program needs
    change         file, old and new: the mistake
"""

from dataclasses import dataclass, field
from typing import Any

from minidist.claims import mutants
from minidist.claims.mutants.patch import Patch, read_document

FOLDER = mutants.TABLE / "record"
Edit = tuple[str, Patch]  # a file of the package, and a change to it


@dataclass(frozen=True, kw_only=True)
class Bug:
    name: str
    system: str
    title: str
    year: int
    mistake: str
    says: str
    chapter: str
    room: int = 1
    repository: str = ""
    thread: str = ""
    here: str = ""
    options: str = ""
    layout: str = ""
    ranks: int = 2
    other: int = 1
    micro: int = 0  # 0: none
    precision: str = "fp32"
    adam: bool = True
    given: tuple[Edit, ...] = field(default=(), repr=False)
    change: tuple[Edit, ...] = field(repr=False)

    @property
    def place(self) -> str:
        """The files in which the bug is rebuilt."""
        return ", ".join(dict.fromkeys(name for name, _ in self.change))

    @property
    def source(self) -> str:
        """System, thread and year."""
        return f"{self.system} {self.thread}".strip() + f", {self.year}"

    @property
    def link(self) -> str:
        """The address of its thread or repository; "" if the bug is our own."""
        if not self.repository:
            return ""
        kind = "pull" if self.thread.startswith("PR") else "issues"
        number = self.thread.rpartition("#")[2]
        return f"https://github.com/{self.repository}" + f"/{kind}/{number}" * bool(number)


def read_all() -> dict[str, Bug]:
    """All bugs by name, in the order of their files."""
    return {bug.name: bug for file in sorted(FOLDER.glob("*.toml")) for bug in read(read_document(file))}


def read(written: dict[str, Any]) -> list[Bug]:
    """The bugs of one document."""
    features = {name: edits_of(feature["change"]) for name, feature in written.get("given", {}).items()}
    bugs = []
    for table in written["bug"]:
        given = tuple(edit for name in table.get("given", ()) for edit in features[name])
        bugs.append(Bug(**{**table, "given": given, "change": edits_of(table["change"])}))
    return bugs


def edits_of(changes: list[dict[str, str]]) -> tuple[Edit, ...]:
    return tuple((change["file"], Patch(changes=((change["old"], change["new"]),))) for change in changes)
