# make demo, make test: each creates .venv and installs what it needs; a second call is fast.
#   PYTHON=python3.11          the interpreter that .venv is made of (3.10 or newer)
#   INDEX=URL                  package index instead of PyPI, EXTRA_INDEX=URL one beside it. Without a GPU:
#   EXTRA_INDEX=https://download.pytorch.org/whl/cpu    takes torch's CPU wheel instead of gigabytes of CUDA
#   MODEL=moe_tiny             what make demo trains
PYTHON ?= python3
INDEX ?=
EXTRA_INDEX ?=
MODEL ?= llama_tiny

VENV := .venv
PIP := $(VENV)/bin/python -m pip
INDEXES := $(if $(INDEX),--index-url $(INDEX)) $(if $(EXTRA_INDEX),--extra-index-url $(EXTRA_INDEX))

.PHONY: help install demo test test-layouts check wheel clean
help:
	@echo "make demo     train a small Llama under two layouts, three times each, and compare them (MODEL=moe_tiny: a MoE)"
	@echo "make test     all tests (trains through Megatron-Core on this CPU)"
	@echo "make test-layouts  every layout of the engine in width, minutes more"
	@echo "make check    ruff, mypy, shellcheck, shfmt"
	@echo "make install  .venv with the embedded engine;  make wheel: dist/*.whl;  make clean: remove .venv and dist"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.embedded: $(VENV)/bin/python pyproject.toml
	$(PIP) install --quiet $(INDEXES) -e '.[embedded]'
	@touch $@

$(VENV)/.dev: $(VENV)/.embedded pyproject.toml
	$(PIP) install --quiet $(INDEXES) -e '.[dev]'
	@touch $@

install: $(VENV)/.embedded

demo: $(VENV)/.embedded
	$(VENV)/bin/python launch.py platform=cpu model=$(MODEL) grid=layouts gpus_per_node=2 repeat=3 name=demo-$(MODEL)
	$(VENV)/bin/python -m compare runs/demo-$(MODEL) -o runs/demo-$(MODEL)/compare
	@printf '%s\n' '' 'The same on a box with GPUs (see the plan first, with dry_run=true, on any machine):' \
	  '  python launch.py model=llama platform=nvidia repeat=3' \
	  '  python launch.py model=llama platform=amd repeat=3' \
	  '  python -m compare runs/llama31_8b-nvidia runs/llama31_8b-amd -o compare'

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest

test-layouts: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m slow

check: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/shellcheck shell/*.sh .ci/run
	$(VENV)/bin/shfmt -i 2 -d shell/*.sh .ci/run

wheel: $(VENV)/.dev
	$(PIP) wheel --quiet --no-deps --wheel-dir dist $(INDEXES) .

clean:
	rm -rf $(VENV) dist
