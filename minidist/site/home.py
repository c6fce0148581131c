"""The home page: what this is, ZeRO's memory to try out, three ways into the book, and what to type first."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import product

import minidist
from minidist.bugs import record
from minidist.claims.papers import library, outcomes
from minidist.contents import CHAPTERS
from minidist.site import content, forms
from minidist.site.views.memory import view_ladder

MODELS = ("gpt2-xl", "llama2-7b", "llama2-13b", "llama2-70b", "llama3-405b")
LADDER = {"capacity": "80", "context": "4096"}  # what a reader of the home page does not choose
LADDER_FORM = (
    forms.ChoiceField("model", "model", "llama2-7b", MODELS),
    forms.Powers("dp", "ranks N", 64, 1024),
    forms.Slider("zero", "ZeRO stage", 3, 0, 3),
)


def text(computing: Sequence[forms.Page]) -> str:
    """The first page. computing: the pages that compute, if there are any, to which it links."""
    links = [
        *(f"[{page.title.rstrip('?').lower()}]({page.name}.md)" for page in computing),
        "[collectives](collectives.md)",
    ]
    words = {
        "chapters": str(len(CHAPTERS)),
        "lines": str(round(sum(len(code_of(entry.name).splitlines()) for entry in CHAPTERS) / len(CHAPTERS))),
        "ladder": content.raw(ladder()),
        "entries": content.raw(entries()),
        "clone": f"git clone {minidist.ADDRESS} minidist && cd minidist\n" * bool(minidist.ADDRESS),
        "printed": printed_by_demo(),
        "computing": ", ".join(links),
        "version": minidist.__version__,
        "code": f"The code: <{minidist.ADDRESS}>." * bool(minidist.ADDRESS),
    }
    page = (content.HERE / "home.md").read_text()
    if not computing:
        page = re.sub(r"\[All settings\].*\n\n", "", page)
    return re.sub(r"\{(\w+)\}", lambda found: words[found[1]], page)


def ladder() -> str:
    """ZeRO's stages in bars, with three settings; the page's script reads all other views from files."""
    inputs = "\n".join(one.as_html() for one in LADDER_FORM)
    view = draw_ladder("llama2-7b", 64)[3]
    script = '<script type="module" src="_static/ladder.js"></script>'
    return f'<form class="compute ladder">{inputs}</form><div id="view" aria-live="polite">{view}</div>{script}'


def ladder_files() -> Iterator[tuple[str, list[str]]]:
    """For each model and N: a file's name, and the views of all stages."""
    model, dp, _ = LADDER_FORM
    for name, n in product(model.words, (2**i for i in range(dp.most.bit_length()))):
        yield f"{name}-{n}.json", draw_ladder(name, n)


def draw_ladder(model: str, n: int) -> list[str]:
    return [view_ladder({"model": model, "dp": str(n), "zero": str(stage), **LADDER}) for stage in range(4)]


def entries() -> str:
    """The three ways into the book, each with what there is, counted."""
    lessons = [json.loads(path.read_text())["cells"] for path in content.CLONE.glob("lessons/*/lesson.ipynb")]
    checks = sum("".join(cell["source"]).count("check(") for cells in lessons for cell in cells if "outputs" in cell)
    figures = [out for paper in library().values() for out in outcomes(paper, {})]
    misprints = sum(bool(out.figure.differs) for out in figures)
    bugs = sum(bool(bug.link) for bug in record.read_all().values())
    return "".join(
        f'<a class="entry" href="{page}.html"><strong>{number} {what}</strong><span>{more}</span></a>'
        for page, number, what, more in (
            ("chapters/index", len(CHAPTERS), "chapters", "Read one file, run it, see every byte."),
            ("lessons/index", len(lessons), "lessons", f"Write each system yourself, with {checks} instant checks."),
            (
                "papers",
                len(figures),
                "published figures, recomputed",
                f"{misprints} misprints found; {bugs} bugs of DeepSpeed, Megatron-LM and others rebuilt.",
            ),
        )
    ).join(('<div class="entries">', "</div>"))


def printed_by_demo() -> str:
    """What `make demo` prints, as the README has it."""
    [block] = re.findall(r"```text\n.*?\n```", (content.CLONE / "README.md").read_text(), re.DOTALL)
    return block


def code_of(name: str) -> str:
    return (content.PACKAGE / f"{name}.py").read_text()
