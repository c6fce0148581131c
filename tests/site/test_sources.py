"""The sources of the pages hold all that is shown, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

from minidist.contents import CHAPTERS
from minidist.site import annotate, build, changes
from minidist.site.sources import Sources

PACKAGE = Path(annotate.__file__).parents[1]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.read_text().strip())


def test_no_line_of_a_module_is_lost() -> None:
    """Pieces, notes and headings, put together again: every line of code once, in order, and every docstring."""
    for path in MODULES:
        document, pieces = annotate.take_apart(path)
        tree = ast.parse(path.read_text())
        assert document == (ast.get_docstring(tree) or "")
        code = [line for piece in pieces for line in piece.code.splitlines()]
        wanted = without_docstrings(path.read_text(), tree)
        assert [line for line in code if line.strip()] == wanted, path


def without_docstrings(source: str, tree: ast.Module) -> list[str]:
    """Lines of code that are shown: not docstrings of the module, its functions, classes and methods, and not comments
    that begin a part."""
    hidden = set[int]()
    nodes = [tree, *tree.body, *(part for node in tree.body if isinstance(node, ast.ClassDef) for part in node.body)]
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            hidden |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    lines = enumerate(source.splitlines(), 1)
    return [line for i, line in lines if i not in hidden and line.strip() and not annotate.SECTION.match(line)]


def test_notes_are_those_of_their_code() -> None:
    _, pieces = annotate.take_apart(PACKAGE / "zero3.py")
    found = {piece.name: piece for piece in pieces}
    assert found["ZeRO3"].note.startswith("One shard of all model states")
    assert found["ZeRO3.forget"].code.lstrip().startswith("def forget")
    assert '"""' not in "".join(piece.code for piece in pieces)


def test_parts_of_a_file_and_of_a_class_have_headings() -> None:
    """In pipeline.py all parts are parts of its class; none is shown as a line of dashes."""
    for chapter, titles in (("pipeline", ["a step", "tensors", "for the report"]), ("ring", ["the ring"])):
        _, pieces = annotate.take_apart(PACKAGE / f"{chapter}.py")
        assert [piece.title for piece in pieces if piece.title][: len(titles)] == titles
        assert "# ----" not in "".join(piece.code for piece in pieces)


@pytest.mark.parametrize(
    ("chapter", "method", "replaces"),
    [
        ("zero3", "ZeRO3.allocate", "zero2: ZeRO2.allocate"),
        ("fsdp", "FSDP.parameters_of", "zero3: ZeRO3.parameters_of"),
    ],
)
def test_a_method_stands_next_to_the_one_that_it_replaces(chapter: str, method: str, replaces: str) -> None:
    [change] = [change for change in changes.changes(chapter) if change.name == method]
    assert change.where == replaces
    assert change.before != change.after
    assert f"def {method.partition('.')[2]}" in change.before
    assert '"""' not in change.before + change.after  # what stands next to the code as its note


def test_first_chapters_change_nothing() -> None:
    assert not changes.changes("mapreduce")
    assert not changes.changes("ring")


def test_marks_of_a_change() -> None:
    shown = changes.as_html(
        [changes.MethodChange("A.f", "b: B.f", "def f():\n    old\n    same", "def f():\n    <new>\n    same")]
    )
    assert "<del>    old</del>" in shown
    assert "<ins>    &lt;new&gt;</ins>" in shown
    assert shown.count("<span>    same</span>") == 2  # the second one is hidden on a phone
    assert shown.count('class="same"') == 2
    alone = changes.as_html([changes.MethodChange("A.f", "", "", "def f():\n    new")])
    assert alone.count("<ins>") == 2
    assert "del" not in alone


def test_prose_of_a_docstring() -> None:
    shown = annotate.prose("A `name` of arXiv 1910.02054, <b>.\n\n    a = 1\n        further\n\nThe end.")
    assert "<code>name</code>" in shown
    assert 'href="https://arxiv.org/abs/1910.02054"' in shown
    assert "&lt;b&gt;" in shown
    assert '<pre tabindex="0">a = 1\n    further</pre>' in shown
    assert len(CHAPTERS) == len({chapter.name for chapter in CHAPTERS})


def test_terms_and_what_they_mean() -> None:
    shown = annotate.prose("P_a   Each layer keeps\n      its <input>.\nCB    One `buffer`.")
    meant = [("P_a", "Each layer keeps\n      its &lt;input&gt;."), ("CB", "One <code>buffer</code>.")]
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", shown, re.DOTALL) == meant
    for other in ("One line\nand another.", "a:  b, c    what it is\n    d       what it is, too"):
        assert "<dl" not in annotate.prose(other)


def test_a_block_with_columns_is_a_table_that_wraps() -> None:
    shown = annotate.prose(
        "It has:\n\n    before it  gather them    (N-1)/N sent\n    after it                  nothing <sent>\n"
    )
    cells = re.findall("<td>(.*?)</td>", shown)
    assert cells == ["before it", "gather them", "(N-1)/N sent", "after it", "", "nothing &lt;sent&gt;"]
    for program in (
        "    mpirun -n 4 python  # one\n    python -m a         # two\n",
        "    f(a)  g(b)\n    h(c)  i(d)\n",
        "    a  b\n",
    ):
        assert "<pre" in annotate.prose(program)
        assert "<table" not in annotate.prose(program)
    for entry in CHAPTERS:  # no line of a docstring's tables is wider than a phone
        document, _ = annotate.take_apart(PACKAGE / f"{entry.name}.py")
        tables = [
            re.sub("</?[a-z].*?>", "", block)
            for block in re.findall("<pre.*?</pre>", annotate.prose(document), re.DOTALL)
        ]
        assert all("python -m" in text or "] = [" in text for text in tables), entry.name


def test_a_page_that_a_lesson_names_is_a_link_only_here(tmp_path: Path) -> None:
    """A reader of the clone may have no pages, and would follow the link to nothing."""
    path = "lessons/04_ring_all_reduce/lesson.ipynb"
    own, relinked = (PACKAGE.parent / path).read_text(), Sources(tmp_path).relink_notebook(path)
    assert "](../../site" not in own
    assert "(../../collectives.md)" not in own
    assert relinked.count("[`site/collectives.html`](../../collectives.md)") == 1
    assert relinked.index("collectives.md") < relinked.index("**Gap 3.**")


def test_files_that_a_chapter_names_are_links(tmp_path: Path) -> None:
    names = ("minidist/engine.py", "fsdp.py", "nosuch.py", "minidist/pp/nosuch.py", "name")
    shown = Sources(tmp_path).link_code(" ".join(f"<code>{name}</code>" for name in names), "chapters")
    assert re.findall('<a href="(.*?)"><code>(.*?)</code></a>', shown) == [
        ("../source/minidist/engine.py.html", "minidist/engine.py"),
        ("fsdp.html", "fsdp.py"),
    ]
    assert re.findall("<code>(.*?)</code>", shown) == [*names]


def test_styles_are_squeezed() -> None:
    made = build.squeeze("/* a\n note */\na {\n    color: red;\n}\n\nb::before { content: '/'; }\n")
    assert made == " a { color: red; } b::before { content: '/'; } "


def test_a_picture_gets_smaller_and_stays_as_large(tmp_path: Path) -> None:
    from PIL import Image

    path = "minidist/memory/1f1b.png"
    assert Sources(tmp_path).page_of(path) == path
    own, copied = PACKAGE.parent / path, tmp_path / path
    with Image.open(own) as before, Image.open(copied) as after:
        assert before.size == after.size
    assert copied.stat().st_size < own.stat().st_size / 2
