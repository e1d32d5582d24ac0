# Every command sets itself up: a virtual environment in .venv, the node-jet clients in tests/interop/node_modules, and
# Java 17 for Spark from the system's packages where it is missing and we may install it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TOOLS  := build/tools/bin
# Only what requirements/ names, and only if its hash is right; jetbus itself is built with what is then there.
LOCKED := -m pip install --quiet --disable-pip-version-check --require-hashes --requirement
ITSELF := -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
NODE_MODULES := tests/interop/node_modules
WEB_MODULES := web/node_modules/.package-lock.json
PAGE := src/jetbus/radar/static/index.html
# A Node.js of the machine comes first; the one from PyPI (make node) is in the virtual environment.
export PATH := $(PATH):$(abspath $(BIN))

.DEFAULT_GOAL := help
.PHONY: help install compiler node java shells chromium radar test quick test-minimum soak fuzz check format demo docs lock audit \
  charts release bench benchpeers benchjournal benchspark benchradar clean

help: ## list the everyday commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

# The bus without Spark: what is small comes first, so that the demo can begin with it.
$(BIN)/.bus: pyproject.toml requirements/bus.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jetbus needs Python 3.11 or newer")'
	@echo "setting up $(VENV), once: 1 of 3, an environment of Python ..."
	@$(PYTHON) -m venv $(VENV)
	@echo "2 of 3, packages of the bus: $$(grep -c == requirements/bus.txt), about 80 MB ..."
	@$(BIN)/python $(LOCKED) requirements/bus.txt
	@echo "3 of 3, jetbus itself ..."
	@$(BIN)/python $(ITSELF)
	@touch $@

# What a user installs; the demo needs no more.
$(BIN)/.ready: $(BIN)/.bus requirements/run.txt
	@echo "packages of Spark: $$(($$(grep -c == requirements/run.txt) - $$(grep -c == requirements/bus.txt))), about 500 MB ..."
	@$(BIN)/python $(LOCKED) requirements/run.txt
	@touch $@

# What is compiled needs a C compiler and Python's headers; where they cannot be had, the same in Python takes its place.
HAVE_COMPILER = command -v cc >/dev/null && $(BIN)/python -c \
  'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'

compiler: $(BIN)/.ready
	@{ $(HAVE_COMPILER); } || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y gcc libc6-dev python3-dev >/dev/null; } || true

$(BIN)/.installed: $(BIN)/.ready requirements/dev.txt src/jetbus/peer/_iterator.c $(wildcard src/jetbus/wire/_*.[ch]) | compiler
	$(BIN)/python $(LOCKED) requirements/dev.txt
	$(BIN)/python $(ITSELF)
	touch $@

node: $(BIN)/.installed
	@command -v npm >/dev/null || $(BIN)/python $(LOCKED) requirements/node.txt

$(NODE_MODULES)/.installed: tests/interop/package.json tests/interop/package-lock.json | node
	cd tests/interop && npm ci --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

# npm leaves this file when it has installed.
$(WEB_MODULES): web/package.json web/package-lock.json | node
	cd web && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

$(PAGE): $(WEB_MODULES) $(shell find web/src web/index.html web/vite.config.ts -type f)
	cd web && npm run build --silent

radar: $(PAGE) ## build the page of Radar

chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && echo "installing Chromium for the tests of Radar ..." && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium >/dev/null; } || true

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

check: install $(WEB_MODULES) ## ruff and mypy --strict; tsc and biome
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd web && npm run check --silent

# Two workers take a file each, see tests/conftest.py; WORKERS= runs all tests in one process. What they leave in the
# temporary folder, such as pytest's own folders and what Spark and Chromium forget, goes with a folder of this run.
WORKERS ?= --numprocesses 2 --dist loadscope --no-loadscope-reorder

test: check java shells chromium $(PAGE) $(NODE_MODULES)/.installed ## check, then all tests
	cd web && npm test --silent
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && TMPDIR="$$folder" \
	  $(BIN)/python -m pytest $(WORKERS) --durations 20

# Without Spark, Chromium and Node.js, and without the slow files that tests/conftest.py names.
QUICK := not spark and not browser and not interop and not slow

quick: install ## ruff, mypy and the quick tests, before each commit: three minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(WORKERS) --quiet -m '$(QUICK)'

# The oldest versions that pyproject.toml allows; without Spark, Node.js and what measures time.
MINIMUM := build/minimum
MINIMUM_TESTS := bus wire peer journal daemon binary cli rules test_loops.py

test-minimum: $(TOOLS)/.ready ## the main tests with the oldest dependencies that pyproject.toml allows
	$(TOOLS)/uv pip compile --quiet --no-header --resolution lowest-direct --python $(PYTHON) --extra dev pyproject.toml \
	  --output-file $(MINIMUM).txt
	$(TOOLS)/uv venv --quiet --clear --python $(PYTHON) $(MINIMUM)
	$(TOOLS)/uv pip install --quiet --python $(MINIMUM) --requirement $(MINIMUM).txt
	$(TOOLS)/uv pip install --quiet --python $(MINIMUM) --no-deps --no-build-isolation --editable .
	PATH="$(abspath $(MINIMUM)/bin):$$PATH" $(MINIMUM)/bin/python -m pytest -m 'not spark and not interop' $(MINIMUM_TESTS:%=tests/%)

MINUTES ?= 5

soak: install ## a daemon under peers that join, leave, are slow, stuck and hostile, for MINUTES=5; draws build/soak.svg
	$(BIN)/python bench/soak.py --minutes $(MINUTES) --chart build/soak.svg

SECONDS ?= 60

fuzz: install ## coverage-guided fuzzing of all that strangers send and disks damage; SECONDS=60 for each target
	$(BIN)/python $(LOCKED) requirements/fuzz.txt
	$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS)

format: install ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Spark is fetched while the bus is on the screen already; JET_DEMO_INSTALLING is the process that fetches it.
demo: $(BIN)/.bus ## a bus with a simulated plant, a journal and Spark, live on a screen
	@mkdir -p build; installer=; trap '[ -z "$$installer" ] || kill "$$installer" 2>/dev/null || true' EXIT; \
	if [ ! -e $(BIN)/.ready ] || [ requirements/run.txt -nt $(BIN)/.ready ] || ! command -v java >/dev/null; then \
	  echo "Spark and Java, about 600 MB, are installed while the demo runs; build/spark.log tells how far it is"; \
	  { $(GET_JAVA); exec make --no-print-directory $(BIN)/.ready; } >build/spark.log 2>&1 </dev/null & installer=$$!; \
	fi; JET_DEMO_INSTALLING=$$installer $(BIN)/jet demo

docs: install ## build the site of the docs into build/site; every warning is an error
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --builder dirhtml docs build/site

$(TOOLS)/.ready: requirements/tools.txt
	@$(PYTHON) -m venv build/tools
	@$(TOOLS)/python $(LOCKED) requirements/tools.txt
	@touch $@

# Versions that are locked stay unless UPGRADE=--upgrade is given. One file serves Python 3.11 and newer.
LOCK = $(TOOLS)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command 'make lock' $(UPGRADE)

lock: $(TOOLS)/.ready ## write requirements/ from pyproject.toml; newer versions with UPGRADE=--upgrade
	$(LOCK) --extra dev pyproject.toml --output-file requirements/dev.txt
	$(LOCK) --extra all --group build --constraint requirements/dev.txt pyproject.toml --output-file requirements/run.txt
	$(LOCK) --extra alarms --extra daemon --extra radar --group build --constraint requirements/dev.txt pyproject.toml --output-file requirements/bus.txt
	$(LOCK) --group fuzz --output-file requirements/fuzz.txt
	$(LOCK) --group node --output-file requirements/node.txt
	$(LOCK) --group tools --output-file requirements/tools.txt
	$(LOCK) --group wheels --constraint requirements/dev.txt --output-file requirements/wheels.txt

audit: $(TOOLS)/.ready node ## compare what is locked with known vulnerabilities; needs the network
	@$(TOOLS)/python requirements/audit.py

charts: install ## draw the charts of the pages Speed and Spark from their measured tables
	$(BIN)/python docs/charts.py --write

release: install radar ## build and check wheel and sources of a tagged version into dist/; TRIAL=--trial for any commit
	@[ "$$(uname)" != Linux ] || $(BIN)/python $(LOCKED) requirements/wheels.txt
	$(BIN)/python build_backend/release.py $(TRIAL)

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

benchradar: install chromium $(PAGE) ## measure Radar: ten million points, and a page of a busy bus
	$(BIN)/python bench/radar_bars.py

clean: ## remove what the commands above made
	rm -rf $(VENV) $(NODE_MODULES) web/node_modules src/jetbus/radar/static build bench/build bench/results .mypy_cache .ruff_cache .pytest_cache
