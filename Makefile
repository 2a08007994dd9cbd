# make demo, make test: each creates .venv and installs what it needs; a second call is fast.
#   PYTHON=python3.11          the interpreter that .venv is made of (3.10 or newer)
#   INDEX=URL                  package index instead of PyPI, EXTRA_INDEX=URL one beside it. Without a GPU:
#   EXTRA_INDEX=https://download.pytorch.org/whl/cpu    takes torch's CPU wheel instead of gigabytes of CUDA
#   TORCH=locked               torch by its hash, too: PyPI's build, with CUDA's libraries on Linux; else that of your index, by its version
#   MODEL=moe_tiny             what make demo trains, DATA=tiny: on English
PYTHON ?= python3
INDEX ?=
EXTRA_INDEX ?=
MODEL ?= llama_tiny
DATA ?= synthetic
DEMO := demo-$(MODEL)$(if $(filter-out synthetic,$(DATA)),-$(notdir $(DATA)))
TORCH ?=

VENV := .venv
PIP := $(VENV)/bin/python -m pip
INDEXES := $(if $(INDEX),--index-url $(INDEX)) $(if $(EXTRA_INDEX),--extra-index-url $(EXTRA_INDEX))

.PHONY: help install demo gpu-day test quick drills npm lock licences test-layouts test-slurm drills-slurm test-wheel docs test-nvidia rehearse nemo bridge bridge-recipes stacks torchtitan-0.3.0 test-stacks wide-stacks submitit check wheel clean
help:
	@echo "make demo     train a small Llama under two layouts, three times each, and compare them (MODEL=moe_tiny: a MoE; DATA=tiny: on English)"
	@echo "make gpu-day  everything that only a GPU shows, on one GPU in half an hour (TINY=1: rehearsed on this CPU), in ./gpu-day"
	@echo "make quick    the tests that a change needs most, in two minutes"
	@echo "make test     all tests (trains through Megatron-Core on this CPU)"
	@echo "make drills   faults made with real processes: a table of what each did before it was mended, and does now"
	@echo "make docs     site/ from docs/ and the docstrings, and every code block of README.md and docs/ run"
	@echo "make test-wheel  the wheel built, installed in an empty environment and used there"
	@echo "make test-layouts  every layout of the engine in width, and drills of a quarter of a minute and more"
	@echo "make test-slurm   jobs on a real Slurm of two emulated nodes (root, apt-get install slurm-wlm munge, for sacct slurmdbd mariadb-server; skipped by name without)"
	@echo "make drills-slurm  those, and faults of jobs: killed daemons, full disks, time limits; five minutes and more"
	@echo "make test-nvidia  NeMo 2.7.3 and Megatron-Bridge 0.3.1 themselves on this CPU: every recipe built, a toy model trained (installs 2.5 GB)"
	@echo "make rehearse NeMo and Megatron-Bridge train toys and play ranks of large jobs on this CPU, and are read back; Primus too where PRIMUS_PATH and PRIMUS_PYTHON name one"
	@echo "make nemo     .venv-nemo with NeMo, for framework=nemo framework.python=.venv-nemo/bin/python"
	@echo "make bridge   .venv-bridge with Megatron-Bridge 0.3.1, on top of .venv-nemo"
	@echo "make bridge-recipes  .venv-bridge-recipes, which builds the recipes of a checkout of Megatron-Bridge 0.6.0 (tprimat recipes import)"
	@echo "make submitit .venv-submitit with hydra-submitit-launcher, for docs/tutorials/sweep.py (after it make test-slurm tries it)"
	@echo "make stacks   .venv-stacks with Hugging Face's Trainer and DeepSpeed, .venv-torchtitan with TorchTitan 0.2.2;  make torchtitan-0.3.0: .venv-torchtitan-0.3.0"
	@echo "make test-stacks  they train on this CPU as the embedded engine does (installs 480 MB);  make wide-stacks: in every case, a quarter of an hour"
	@echo "make lock     requirements/lock*.txt renewed: the newest packages that fit, with hashes;  make licences: those installed, by licence: of users, of developers"
	@echo "make check    ruff, mypy, shellcheck, shfmt"
	@echo "make install  .venv with the embedded engine;  make wheel: dist/*.whl;  make clean: remove .venv, .venv-nemo, .venv-bridge and dist"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# every package by the hashes of requirements/lock*.txt; which build of torch fits a machine is the user's choice
LOCKED := $(PIP) install --quiet $(INDEXES) --no-deps --require-hashes -r
TORCH_VERSION = $(shell sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements/lock-torch.txt)

$(VENV)/.embedded: $(VENV)/bin/python pyproject.toml requirements/lock.txt requirements/lock-torch.txt
	$(LOCKED) requirements/lock.txt
	$(if $(filter locked,$(TORCH)),$(LOCKED) requirements/lock-torch.txt,$(PIP) install --quiet $(INDEXES) torch==$(TORCH_VERSION))
	$(PIP) install --quiet $(INDEXES) --no-deps -e .
	@$(VENV)/bin/python -m compileall -q conf launchers parsers metrics compare estimate measure corpora tensorprimat # where nobody may write later
	@touch $@

$(VENV)/.dev: $(VENV)/.embedded requirements/lock-dev.txt
	$(LOCKED) requirements/lock-dev.txt
	@touch $@

# the newest of all, from PyPI, for every Python and system (needs its network)
lock: $(VENV)/bin/python
	$(PIP) install --quiet $(INDEXES) uv
	$(VENV)/bin/python requirements/renew.py

# of the names in the lock files: what the program and its engine bring to a user, and what only developers have
NAMES = $(shell sed -n 's/^\([a-z][^= ]*\)==.*/\1/p' requirements/lock.txt requirements/lock-torch.txt | sort -u)
LICENCES := $(VENV)/bin/pip-licenses --from=mixed --order=license
licences: $(VENV)/.dev
	@echo 'The program and its engine:'
	@$(LICENCES) --packages tensorprimat $(NAMES)
	@printf '\n%s\n' 'Developers alone:'
	@$(LICENCES) --ignore-packages tensorprimat $(NAMES)

install: $(VENV)/.embedded

demo: $(VENV)/.embedded
	$(VENV)/bin/python launch.py platform=cpu model=$(MODEL) data=$(DATA) grid=layouts gpus_per_node=2 repeat=3 name=$(DEMO)
	$(VENV)/bin/python -m compare runs/$(DEMO) -o runs/$(DEMO)/compare
	@printf '%s\n' '' 'The same on a box with GPUs (see the plan first, with dry_run=true, on any machine):' \
	  '  python launch.py model=llama platform=nvidia repeat=3' \
	  '  python launch.py model=llama platform=amd repeat=3' \
	  '  python -m compare runs/llama31_8b-nvidia runs/llama31_8b-amd -o compare'

# they start Python a thousand times, and read their own code in each process: compiled once
export PYTHONDONTWRITEBYTECODE :=

# long files first (tests/conftest.py); three at a time on two cores: half of it waits for processes
WORKERS := 3
PYTEST = $(VENV)/bin/python -m pytest --dist loadfile --no-loadscope-reorder -n $(WORKERS)

test: $(VENV)/.dev npm
	$(PYTEST) --durations=25

# all but what trains, starts many processes, or reads for long
quick: $(VENV)/.dev
	$(PYTEST) -m 'not engine and not long and not slow and not nvidia and not wheel and not docs and not slurm and not stacks'

# those of make test and the long ones; one at a time, as they measure seconds
drills: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m 'drill and not slurm' tests

$(VENV)/.docs: $(VENV)/.dev pyproject.toml
	$(PIP) install --quiet $(INDEXES) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	$(VENV)/bin/mkdocs build --strict --quiet
	$(VENV)/bin/python -m pytest -m docs --durations=15 tests/test_docs.py

# one after the other on one Slurm
test-slurm: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m 'slurm and not drill' -n 0 -rs --durations=5

# those and kills of daemons, full disks, time limits: they wait for most of their time, so four go on side by side, each on a Slurm of
# its own (tests/conftest.py), which is more than a machine with other work on it should decide a change by
drills-slurm: $(VENV)/.dev
	-$(MAKE) submitit
	$(VENV)/bin/python -m pytest -m slurm -rs --durations=10

test-wheel: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m wheel --durations=5 tests/test_wheel.py

# resumable, and at most MINUTES a call: make gpu-day MINUTES=9, again and again
# by .venv where it is, else by the python3 that is here, as of a vendor's container: it installs nothing, and says what is missing
DAY := gpu-day
MINUTES := 30
GPU_DAY_PYTHON := $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,$(PYTHON))
gpu-day:
	$(GPU_DAY_PYTHON) benchmarks/gpu_day.py $(DAY) --minutes $(MINUTES) $(if $(TINY),--tiny)

# for tests/shell and tests/compare/test_browser.py (with the machine's chromium, else Playwright's): skipped by name where npm is not,
# or what it needs cannot be reached
NPM_PACKAGES := bats@1.13.0 playwright-core@1.65.1 axe-core@4.14.1
npm: $(VENV)/.dev
	@[ -d $(VENV)/node_modules/axe-core ] || ! command -v npm >/dev/null || \
	  npm install --silent --no-audit --no-fund --fetch-retries=0 --fetch-timeout=30000 --prefix $(VENV) $(NPM_PACKAGES) >/dev/null || \
	  echo "npm cannot install $(NPM_PACKAGES): tests/shell and the browser's tests are skipped"
	@[ -d $(VENV)/browsers ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || ! command -v node >/dev/null || \
	  PLAYWRIGHT_BROWSERS_PATH=$(CURDIR)/$(VENV)/browsers node $(VENV)/node_modules/playwright-core/cli.js install \
	  chromium-headless-shell >/dev/null 2>&1 || echo "no Chromium to be had: the browser's tests are skipped (apt install chromium)"

test-layouts: $(VENV)/.dev
	$(PYTEST) -m slow --durations=10

NEMO := .venv-nemo
NEMO_PIP := $(NEMO)/bin/python -m pip install --quiet $(INDEXES)

$(NEMO)/.installed: requirements/nemo.txt requirements/nemo-constraints.txt
	$(PYTHON) -m venv $(NEMO)
	$(NEMO_PIP) -c requirements/nemo-constraints.txt torch numpy
	$(NEMO_PIP) --no-deps nemo_toolkit==2.7.3
	$(NEMO_PIP) -c requirements/nemo-constraints.txt -r requirements/nemo.txt
	@touch $@

nemo: $(NEMO)/.installed

# Bridge 0.3.1 and the Megatron-Core that it is written for, 66 MB before NeMo's packages, which serve it as well
BRIDGE := .venv-bridge
SITE := -c 'import site; print(site.getsitepackages()[0])'

$(BRIDGE)/.installed: $(NEMO)/.installed requirements/bridge.txt
	$(PYTHON) -m venv $(BRIDGE)
	$(NEMO)/bin/python $(SITE) > "$$($(BRIDGE)/bin/python $(SITE))/nemo.pth"
	$(BRIDGE)/bin/python -m pip install --quiet $(INDEXES) --no-deps -r requirements/bridge.txt
	@touch $@

bridge: $(BRIDGE)/.installed

# for `tprimat recipes import` of a checkout of Bridge 0.6.0, and its tests (BRIDGE_PATH)
BRIDGE_RECIPES := .venv-bridge-recipes

$(BRIDGE_RECIPES)/.installed: $(NEMO)/.installed requirements/bridge_recipes.txt
	$(PYTHON) -m venv $(BRIDGE_RECIPES)
	$(NEMO)/bin/python $(SITE) > "$$($(BRIDGE_RECIPES)/bin/python $(SITE))/nemo.pth"
	$(BRIDGE_RECIPES)/bin/python -m pip install --quiet $(INDEXES) --no-deps -r requirements/bridge_recipes.txt
	@touch $@

bridge-recipes: $(BRIDGE_RECIPES)/.installed

# Trainer and DeepSpeed, and TorchTitan, each on top of the packages of .venv
STACKS := .venv-stacks/.installed .venv-torchtitan/.installed

# hydra-submitit-launcher, for docs/tutorials/sweep.py and its test
SUBMITIT := .venv-submitit/.installed

# TorchTitan 0.3.0, which none of CI's tests needs
TITAN_030 := .venv-torchtitan-0.3.0/.installed

$(STACKS) $(SUBMITIT) $(TITAN_030): .venv-%/.installed: $(VENV)/.embedded requirements/%.txt
	$(PYTHON) -m venv .venv-$*
	$(VENV)/bin/python $(SITE) > "$$(.venv-$*/bin/python $(SITE))/embedded.pth"
	.venv-$*/bin/python -m pip install --quiet $(INDEXES) -r requirements/$*.txt
	@touch $@

stacks: $(STACKS)

torchtitan-0.3.0: $(TITAN_030)

submitit: $(SUBMITIT)

# each trains by processes of its own that use a core or two: one after the other
STACKS_PYTEST = $(VENV)/bin/python -m pytest -rs --durations=5 tests/plain tests/launch/test_primus_torchtitan.py
test-stacks: $(VENV)/.dev
	-$(MAKE) stacks
	$(STACKS_PYTEST) -m 'stacks and not wide'

wide-stacks: $(VENV)/.dev
	-$(MAKE) stacks torchtitan-0.3.0
	$(STACKS_PYTEST) -m stacks

# where the packages cannot be had, the tests are skipped by name
test-nvidia rehearse: WORKERS := 2
test-nvidia: $(VENV)/.dev
	-$(MAKE) nemo bridge
	$(PYTEST) -rs -m nvidia tests/nvidia

rehearse: $(VENV)/.dev
	-$(MAKE) nemo bridge
	$(PYTEST) -rs -m nvidia tests/rehearsal

check: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/shellcheck shell/*.sh tests/cluster/*.sh launchers/ranks/rehearsal/bin/* .ci/run
	$(VENV)/bin/shfmt -i 2 -d shell/*.sh tests/cluster/*.sh launchers/ranks/rehearsal/bin/* .ci/run

wheel: $(VENV)/.dev
	$(PIP) wheel --quiet --no-deps --wheel-dir dist $(INDEXES) .

clean:
	rm -rf $(VENV) $(NEMO) $(BRIDGE) $(BRIDGE_RECIPES) $(dir $(STACKS) $(SUBMITIT) $(TITAN_030)) dist site
