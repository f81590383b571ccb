# The two commands of a new user are `make run` and `make test`; both set up what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled once, not by each of the hundred processes that tests start.
unexport PYTHONDONTWRITEBYTECODE
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

ifeq ($(shell command -v $(PYTHON) 2>/dev/null),)
PYTHON := python3
endif

.PHONY: help run quick test nightly browser peers check lint types arrows docs bench errors format clean

help:
	@echo "make run    install, plan the bundled examples on the sandbox market, serve API and pages"
	@echo "make test   install, then every gate: format, lint, types, import arrows, tests"
	@echo "make quick  the gates, and the tests nearest to what differs from BASE (main)"
	@echo "make check  the gates without the tests"
	@echo "make docs   the documentation as a site, in .site"
	@echo "make nightly  the slow tests, the proofs of reserving and the drawn examples at full depth (hours)"
	@echo "make bench  the benchmarks (not part of the tests)"
	@echo "make errors the error tables of docs/performance-accuracy.md"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Of what pip tells, every tenth package. A failure of pip is one of the line (pipefail, which sh lacks).
PIP := $(BIN)/python -u -m pip install --disable-pip-version-check --progress-bar off --constraint constraints.txt
TOLD := awk '/^Collecting/ { if (++n % 10 == 0) print "  " n " packages found" } \
	/^Installing collected/ { print "  installing them" } /^ERROR|^WARNING/ { print } { fflush() }'
$(STAMP) $(DEV_STAMP): SHELL := /bin/bash
$(STAMP) $(DEV_STAMP): .SHELLFLAGS := -o pipefail -c

# The planner's inner loops are compiled here, else the first plan would do it in its own time.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), once, in about two minutes"
	@$(PIP) --editable . | $(TOLD)
	@echo "compiling the planner's inner loops, once, in about half a minute"
	@$(BIN)/python -m optimizer.placement.compile_ahead
	@touch $@

# One SDK that only tests use has 18,000 modules: of it, what is imported is compiled, when it is.
$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) with what tests need, once, in some minutes"
	@$(PIP) --no-compile --editable '.[dev]' | $(TOLD)
	@echo "compiling modules and the planner's inner loops, once"
	@$(BIN)/python -m compileall -q -j 0 -x '/site-packages/oci/' $(VENV)/lib >/dev/null || true
	@$(BIN)/python -m optimizer.placement.compile_ahead
	@touch $@ $(STAMP)

run: $(STAMP)
	$(BIN)/broker up

# The browser and the peers' tools are fetched while our packages are installed and the gates run.
test:
	$(MAKE) --jobs 3 --output-sync=target check browser peers
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not slow"

quick: check
	$(BIN)/python -m tests.changed $(or $(BASE),main)

browser: | $(BIN)/python
	$(BIN)/python tests/setup_machine.py

peers: | $(BIN)/python
	$(BIN)/python -m tests.peers_env canaille clients dstack gpuhunt grafana kubernetes melange skypilot slack

nightly: $(DEV_STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow
	TEST_PROFILE=nightly $(BIN)/python -m pytest -n 2 --dist loadgroup -s tests/faults
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 3000 -m "not slow" \
		--ignore tests/faults --ignore tests/e2e --ignore tests/pages
	$(BIN)/python -m tests.mutants --seed $$(date +%Y%j) --count 150

check: lint types arrows docs

lint: $(DEV_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV_STAMP)
	$(BIN)/mypy

arrows: $(DEV_STAMP)
	$(BIN)/lint-imports

# The documentation as a site in .site; a broken link fails.
docs: $(DEV_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(DEV_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV_STAMP)
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench.polling
	$(BIN)/python -m tests.bench.performance

errors: $(DEV_STAMP)
	@$(BIN)/python -m tests.bench.calibration report

clean:
	rm -rf $(VENV) .peers .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
