# Everything a person does here by name. It needs Python 3.11 or newer, make, and a package registry.

PYTHON ?= python3
UV ?= $(firstword $(wildcard .venv/bin/uv) uv)
UPGRADE ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --universal --no-annotate --no-emit-index-url --python-version 3.11 $(UPGRADE)

# Many short-lived processes start here: without bytecode each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
unexport PIP_NO_COMPILE

.DEFAULT_GOAL := help
.PHONY: help setup install demo check test test-all bench lock proto clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What .venv was made from. PYTHON makes a new .venv; one that is there keeps its own, unless another was asked for.
STATE := cat requirements.lock pyproject.toml | cksum; $(BIN)/python --version 2>&1; pwd -P
BENCH_STATE := cat requirements-bench.lock | cksum; $(STATE)
ASKED := $(if $(filter command environment,$(firstword $(origin PYTHON))),$(PYTHON))
AS_ASKED := $(if $(ASKED),test "$$($(ASKED) --version 2>&1)" = "$$($(BIN)/python --version 2>&1)",true)
MODERN := import sys; sys.exit(sys.version_info < (3, 11))
# The scripts of a .venv that was copied or moved still run the old one.
AT_HOME := grep -qF "$(CURDIR)/.venv/bin/" $(BIN)/pip 2>/dev/null

setup: ## Make .venv with everything; at once when it is current
	@if ! test "$$(cat .venv/made-from 2>/dev/null)" = "$$($(STATE))" || ! $(AS_ASKED); then \
		$(MAKE) --no-print-directory install; fi

install:
	@rm -f .venv/made-from .venv/made-from-bench
	@if ! $(AS_ASKED) || ! $(AT_HOME) || ! $(BIN)/python -c 'import pip; $(MODERN)' 2>/dev/null; then \
		$(PYTHON) -c '$(MODERN)' || { echo 'Phalanx needs Python 3.11 or newer, and "$(PYTHON)" is not one.' \
			'Name one: make setup PYTHON=python3.12' >&2; exit 1; }; \
		$(PYTHON) -m venv --clear .venv; fi
	@echo "Filling .venv ($$($(BIN)/python --version)); a new one takes a minute or two."
	@$(PIP) install --compile --require-hashes --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@{ $(STATE); } > .venv/made-from

demo: setup ## Fit and simulate, on this CPU and on a group of workers
	@$(BIN)/python -m phalanx.demo

check: setup ## Format, lint, types, generated code, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m pytest --quiet tests/test_layering.py

# Most tests wait for processes to start and end, so several run side by side; those of one file stay together.
PYTEST := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

test: check ## Check, and every test but the slow ones
	$(PYTEST) -m "not slow"

test-all: check ## Check, and every test
	$(PYTEST)

bench: setup ## Measure, beside the peers
	@if ! test "$$(cat .venv/made-from-bench 2>/dev/null)" = "$$($(BENCH_STATE))"; then \
		echo "Adding the peers to .venv."; \
		$(PIP) install --compile --requirement requirements-bench.lock && { $(BENCH_STATE); } > .venv/made-from-bench; fi
	@$(BIN)/python benchmarks/run.py

proto: setup ## Write the generated code again
	@$(BIN)/python proto/generate.py

# torch brings CUDA's libraries, pinned by itself, where its build needs them: the lock leaves them out.
lock: ## Write the locks again, with uv; UPGRADE=--upgrade takes newer releases
	@$(COMPILE) --generate-hashes --extra worker --extra dev --output-file requirements.lock pyproject.toml
	@$(COMPILE) --extra bench --constraint requirements.lock --output-file requirements-bench.lock pyproject.toml
	@{ printf '%s\n' \
		'# What the benchmarks need besides requirements.lock. Made by: make lock' \
		'#' \
		'# Without hashes, so that a CPU build of torch (2.13.0+cpu) satisfies the pin too. Where pip finds none, it takes' \
		'# the default build, which on Linux is far larger: name a CPU index in PIP_EXTRA_INDEX_URL to avoid that.'; \
		sed -n 's/ \\$$//p' requirements.lock | grep -vxF -f - requirements-bench.lock | \
			grep -vE '^(#|cuda-|nvidia-|triton)'; } > .lock.tmp && mv .lock.tmp requirements-bench.lock

clean: ## Remove .venv, caches and build outputs
	@rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
