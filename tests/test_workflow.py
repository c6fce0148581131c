"""GitHub's workflow: what it names exists, and a release's scripts do what they say. Nothing here asks GitHub."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from minidist import __version__

ROOT = Path(__file__).parents[1]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
SCRIPTS = [step["run"] for step in STEPS if "run" in step]


def test_what_the_workflow_names_is_there() -> None:
    targets = re.findall(r"^(?:\$\(VENV\)|([\w.-]+))(/\.\w+)?:(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = {f"{name or '.venv'}{stamp}" for name, stamp in targets}
    made = {target for script in SCRIPTS for target in re.findall(r"^make (\S+)", script, re.MULTILINE)}
    assert made == {".venv/.dev", "site", "site-test", "dist"}
    assert made <= known
    assert ".ci/run" in SCRIPTS
    assert os.access(ROOT / ".ci/run", os.X_OK)
    for job in JOBS.values():
        assert set(job.get("needs", [])) <= JOBS.keys()


def test_actions_are_github_s_own_and_pinned_by_major_version() -> None:
    used = {step["uses"] for step in STEPS if "uses" in step}
    assert len(used) >= 5
    assert not [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+", action)]
    assert len({action.partition("@")[0] for action in used}) == len(used)


def test_it_runs_on_push_and_pull_request_and_writes_only_where_it_must() -> None:
    when = WORKFLOW[True]  # YAML 1.1 reads the key `on` as a truth value
    assert when == {"push": {"branches": ["main"], "tags": ["v*"]}, "pull_request": None}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name for name, job in JOBS.items() if "permissions" in job} == {"publish", "release"}
    for name, only in (("publish", "refs/heads/main"), ("release", "refs/tags/v")):
        assert only in JOBS[name]["if"]
        assert JOBS[name]["needs"] == ["check", "alone", "site"]


def test_a_leg_without_mpi_installs_nothing_else() -> None:
    """Neither make nor extras; on Windows, too."""
    leg = JOBS["alone"]
    scripts = [step["run"] for step in leg["steps"] if "run" in step]
    assert leg["strategy"]["matrix"]["system"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert scripts[0] == "pip install ."
    for script in scripts[1:]:
        program = script.split()[1]
        assert program == "-m" or (ROOT / program).is_file()


@pytest.mark.parametrize("tag", [f"v{__version__}", "v9.9.9"])
def test_a_tag_is_released_under_its_version_alone(tmp_path: Path, tag: str) -> None:
    (tmp_path / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text())
    (tmp_path / "dist").mkdir()
    files = {f"minidist-{__version__}-py3-none-any.whl", f"minidist-{__version__}.tar.gz"}
    for name in (*files, "artifact.tar"):
        (tmp_path / "dist" / name).touch()
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >said\n')
    (tmp_path / "gh").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": tag}
    scripts = [step["run"] for step in JOBS["release"]["steps"] if "\n" in step.get("run", "")]
    done = subprocess.run(["bash", "-e", "-c", "\n".join(scripts)], cwd=tmp_path, env=environment)
    if tag != f"v{__version__}":
        assert done.returncode != 0
        assert not (tmp_path / "said").exists()
        return
    assert done.returncode == 0
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:3] == ["release", "create", tag]
    assert {name.removeprefix("dist/") for name in said if name.startswith("dist/")} == {
        *files, f"minidist-{__version__}-site.tar"
    }  # fmt: skip
    notes = (tmp_path / "notes.md").read_text()
    assert "### Added" in notes
    assert not re.search(r"^## ", notes, re.MULTILINE)
