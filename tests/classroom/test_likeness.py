"""The note on code that is the chapter's: pasted code is found in whatever clothes, programs of one's own are not."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, LESSONS, ROOT, load
from classroom.mistakes import BASES, SUBMISSIONS
from minidist.classroom.grading.likeness import Forms, find_alike, find_hidden_code, forms_in, texts_in
from minidist.classroom.grading.submission import forms_of_chapters


class Disguise(ast.NodeTransformer):
    """Other names, a statement more in every function, and annotations that were not there."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        own = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in own:
                inner.id = f"my_{inner.id}"
        node.body[:0] = ast.parse("'''My own work.'''\nunused: list = [len(str(k)) for k in range(3)]").body
        return node


def swap_independent_lines(tree: ast.AST) -> ast.AST:
    """Two assignments that follow each other, and do not need each other, change places."""
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for k in range(len(body) - 1 if isinstance(body, list) else 0):
            one, other = body[k : k + 2]
            names = [{name.id for name in ast.walk(each) if isinstance(name, ast.Name)} for each in (one, other)]
            if isinstance(one, ast.Assign) and isinstance(other, ast.Assign) and not names[0] & names[1]:
                body[k : k + 2] = [other, one]
    return tree


def forms_of(text: str) -> Forms:
    tree = ast.parse(text)
    return sum((forms_in(each) for each in (tree, *texts_in(tree))), Forms())


def chapters(number: str) -> tuple[dict[str, Forms], list[Path]]:
    """What the lesson's chapters have of what it asks for, and their files."""
    tests = load(LESSONS[number] / "test_exercise.py")
    found = [LESSONS[number] / f"{name}.py" for name in tests.HIDDEN if "." not in name]
    found += [Path(spec.origin) for name in tests.HIDDEN if "." in name and (spec := find_spec(name)) and spec.origin]
    return forms_of_chapters(tests.HIDDEN, tests.ASKED, LESSONS[number]), found


def programs(number: str) -> Iterator[tuple[str, str]]:
    yield "the right answer", ANSWERS[number]
    for mistake in (*BASES.get(number, {}).values(), *SUBMISSIONS[number].values()):
        yield mistake.name, mistake.text()


@pytest.mark.parametrize("number", LESSONS)
def test_what_a_student_wrote_gets_no_note_and_the_chapter_does(number: str) -> None:
    """Of all programs that were written for the lessons, right and wrong."""
    of_chapters, files = chapters(number)
    for name, text in programs(number):
        try:
            assert not find_alike(of_chapters, forms_of(text)), name
        except SyntaxError:
            continue
    pasted = sum((forms_of(file.read_text()) for file in files), Forms())
    long = {name for name, forms in of_chapters.items() if forms.total() > 8}
    assert find_alike(of_chapters, pasted).keys() == long


def test_the_readme_says_how_many_programs_get_no_note() -> None:
    """Those that are Python, and of right answers those that were written independently."""
    readme = " ".join((ROOT / "minidist" / "classroom" / "README.md").read_text().split())
    [(every, right)] = re.findall(r"Of (\d+) programs .*?, (\d+) of them right answers in different styles", readme)
    written, independent = 0, 0
    for number in LESSONS:
        for _, text in programs(number):
            with suppress(SyntaxError):
                written += bool(ast.parse(text))
        answers: list[Forms] = []
        for text in (ANSWERS[number], *(base.text() for base in BASES[number].values())):
            forms = forms_of(text)
            if all((forms & other).total() < 0.8 * min(forms.total(), other.total()) for other in answers):
                answers.append(forms)  # at least a fifth of its statements for itself, although what is given counts
        independent += len(answers)
    assert (written, independent) == (int(every), int(right))
    assert independent >= 40


@pytest.mark.parametrize("number", LESSONS)
def test_a_disguise_is_seen_through(number: str) -> None:
    of_chapters, files = chapters(number)
    trees = [swap_independent_lines(Disguise().visit(ast.parse(file.read_text()))) for file in files]
    text = "\n".join(ast.unparse(ast.fix_missing_locations(tree)) for tree in trees)
    for written in (text, f"exec({text!r})", "if True:\n" + "".join(f"    {line}\n" for line in text.splitlines())):
        alike = find_alike(of_chapters, forms_of(written))
        assert alike.keys() == {name for name, forms in of_chapters.items() if forms.total() > 8}


def test_code_that_is_not_in_the_text_is_named() -> None:
    assert find_hidden_code(ast.parse("import zlib\n\nexec(zlib.decompress(b''))")) == "line 3 (exec)"
    assert find_hidden_code(ast.parse("import builtins as b\nb.eval('1')")) == "line 2 (eval)"
    for way in (
        "import importlib.util as u\n\nu.spec_from_file_location('x', 'ring.py').loader.exec_module(m)",
        "\n\nspec.loader.exec_module(m)",
        "\n\nfrom importlib import import_module as i",
        "import importlib as i\n\ngetattr(i, 'import_module')('minidist.' + 'ring')",
        "\n\nimport zipimport",
        "\n\nfrom importlib.machinery import SourcelessFileLoader as S",
        "\n\n__import__('minidist.ring')",
        "\n\nfrom runpy import run_path",
    ):
        assert re.match(r"line 3 \(\w+\)", find_hidden_code(ast.parse(way))), way
    assert not find_hidden_code(ast.parse("import re\nP = re.compile('x')\nexecute = 1\nself.evaluate()"))
