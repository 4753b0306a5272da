.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Trust the certificates that the machine trusts, as pip does.
export UV_SYSTEM_CERTS ?= true

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
AZURITE := $(VENV)/azurite/.done
AXE := $(VENV)/axe/.done
CHROMIUM := $(VENV)/.chromium-done
# The uv on PATH if it runs, otherwise one that pip puts into the virtual environment.
UV := $(if $(shell uv --version 2>/dev/null),uv,$(BIN)/uv)

# make sim SEEDS=50000 runs that many seeds; make sim SEED=123 replays one of them.
SEEDS ?= 1000
SEED ?=
# make explore CASTS=lane explores that one alone.
CASTS ?=
# make chaos MINUTES=5 SEED=7 runs five minutes on each arena; ARENAS="file sqlite" only those. make soak MINUTES=30.
MINUTES ?= 1
ARENAS ?=
CHAOS_ARGS = --minutes $(MINUTES) $(addprefix --arena ,$(ARENAS)) $(if $(SEED),--seed $(SEED))
# make test PYTEST_ARGS="-k claim" passes more to pytest.
PYTEST_ARGS ?=
# make bench BENCH_ARGS=--write puts the tables into docs/benchmarks.md.
BENCH_ARGS ?=
# make lock LOCK_ARGS=--upgrade moves every pin to the newest version that fits.
LOCK_ARGS ?=

.PHONY: help setup demo test lint format bench sim explore chaos soak lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) $(AZURITE) $(AXE) $(CHROMIUM) ## Create .venv with the pinned dependencies and this project

demo: $(STAMP) ## Watch a queue at work
	$(BIN)/brigade demo --report

test: lint $(AZURITE) $(AXE) $(CHROMIUM) ## Lint, then run the test suite
	$(BIN)/python -m pytest -n 3 $(PYTEST_ARGS)

lint: $(STAMP) ## Check rules, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP) ## Fix what can be fixed, and format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(STAMP) ## Measure throughput and requests per message
	$(UV) pip install --quiet --python $(BIN)/python --requirement bench/requirements.txt \
		|| echo "bench/requirements.txt could not be installed: the comparison leaves those queues out"
	npm install --prefix bench/s3db --no-package-lock --omit=optional --omit=peer --legacy-peer-deps --ignore-scripts \
		--no-audit --no-fund --loglevel=error \
		|| echo "bench/s3db could not be installed: the comparison on S3 leaves s3db.js out"
	npm install --prefix bench/elasticmq --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error \
		|| echo "bench/elasticmq could not be installed: the comparison over HTTP leaves ElasticMQ out"
	$(BIN)/python -m bench $(BENCH_ARGS)

sim: $(STAMP) ## Simulate faults: SEEDS=1000 for many, SEED=7 to replay one
	$(BIN)/brigade-sim $(if $(SEED),--replay $(SEED),--seeds $(SEEDS))

explore: $(STAMP) ## Explore every order of events of a few actors: CASTS="lane own-ids" for some
	$(BIN)/brigade-explore $(CASTS)

chaos: $(STAMP) ## Break real processes and servers, and judge: MINUTES=5 on each arena
	$(BIN)/brigade-chaos $(CHAOS_ARGS)

soak: $(STAMP) ## Mixed load without faults: is memory flat, is anything left? MINUTES=30
	$(BIN)/brigade-chaos --soak $(CHAOS_ARGS)

lock: | $(BIN)/python $(UV) ## Write requirements.lock anew from pyproject.toml
	$(UV) pip compile pyproject.toml --group dev --output-file requirements.lock \
		--universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --quiet $(LOCK_ARGS)

clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) bench/s3db/node_modules bench/elasticmq/node_modules build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock | $(BIN)/python $(UV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# The emulator of Azure's object store; where it can't be had, the tests on it are skipped.
$(AZURITE): tests/azurite/package.json tests/azurite/package-lock.json | $(BIN)/python
	@mkdir -p $(@D) && cp tests/azurite/package.json tests/azurite/package-lock.json $(@D)
	npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@ \
		|| echo "azurite could not be installed: the tests on Azure's store are skipped"

# The accessibility checker for the dashboard's pages; where it can't be had, those tests are skipped.
$(AXE): tests/axe/package.json tests/axe/package-lock.json | $(BIN)/python
	@mkdir -p $(@D) && cp tests/axe/package.json tests/axe/package-lock.json $(@D)
	npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@ \
		|| echo "axe-core could not be installed: the tests of accessibility are skipped"

# The browser that the dashboard is tested in: Debian's, installed where there is none and we may.
$(CHROMIUM): | $(BIN)/python
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null; \
	then touch $@; \
	else echo "chromium could not be installed: the tests in a browser are skipped; try apt-get install chromium"; fi

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " \
		+ sys.version.split()[0] + ": try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(BIN)/uv: | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'uv>=0.8,<1'

# A uv that is on PATH needs no rule of its own.
.PHONY: uv
uv:
