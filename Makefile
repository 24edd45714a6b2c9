# The commands of this project. They need make, Python 3.11 or newer and a JDK 17; `make setup` says what is missing.
PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.asyncstate-ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup java test test-all test-matrix test-slow test-services simulate fuzz plans mutations wheel demo check check-code format docs docs-site lock clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: java $(STAMP)  ## virtual environment, pinned packages, JDK check

java:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Python %d.%d is too old: asyncstate needs 3.11. Name a newer one: make setup PYTHON=python3.11" % v[:2])'
	@$(PYTHON) .ci/check_java.py $(if $(CI),--install)

$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned packages into $(VENV) (a few minutes the first time)"
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q asyncstate operators bench tests  # else each process compiles, where none may write
	@touch $(STAMP)

# tests/conftest.py says how tests are spread: by file, but whatever shares a Spark session goes to one worker. One more
# process than two cores: some tests wait for brokers and databases.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder
# Where Python may not write bytecode, pytest would rewrite the asserts of each file again in each worker.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test: setup  ## the tests without Spark, and a choice of those with it; few examples of a property
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-brief} \
		$(PYTEST) $(SPREAD) -m "not slow and not long and (not spark or smoke)"

test-all: setup  ## every test but the slow ones
	$(PYTEST) $(SPREAD)

test-matrix: setup  ## the tests on each Spark and Python of the README's table, and over Spark Connect; hours
	$(BIN)/python .ci/matrix.py

test-services: setup  ## install PostgreSQL, MariaDB and Kafka for tests (root, Maven), and run the tests that need them
	$(PYTHON) .ci/check_servers.py --install
	CI=true $(BIN)/python -m pytest tests/sinks tests/kafka

LIVES := 1000
simulate: setup  ## LIVES=1000 random lives of jobs in one process, with crashes, restarts and changed programs
	$(BIN)/python -m tests.simulation --lives $(LIVES)

plans: setup  ## write the compiled plans of the SQL tests again, after an intended change
	$(BIN)/python -m tests.sql.golden

QUERIES := 1000
fuzz: setup  ## QUERIES=1000 random SQL statements over changing tables, against DuckDB
	$(BIN)/python -m tests.sql.fuzz $(QUERIES)

mutations: setup  ## do the tests notice small faults put into a copy of the code?
	$(BIN)/python -m tests.mutations

test-slow: setup  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow --timeout 1800

wheel: setup  ## what other projects install, in dist/
	$(BIN)/python -m hatchling build -t wheel

demo: setup  ## Nexmark q4 and q18 on Spark, sync and async, checked and compared
	$(BIN)/python -m bench nexmark --queries q4,q18 --events 1000000 --async-state.enabled both

check: check-code docs-site  ## format, lint, types, layers, words, doc examples, docs site; with -j 2 in half the time

check-code: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/write_docs.py --check
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/house/test_mutations.py tests/docs/test_words.py
	$(BIN)/python -m pytest --doctest-modules asyncstate operators

format: setup  ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup  ## rewrite the pages that are generated from the code
	$(BIN)/python .ci/write_docs.py

docs-site: setup  ## the pages and the reference as HTML, in build/docs-site; a warning is an error
	$(BIN)/python -m sphinx -b html -q -W --keep-going docs build/docs-site

lock:  ## pin the newest packages that pyproject.toml allows (needs uv)
	@echo '# The exact packages that development and CI install. Written by `make lock` from pyproject.toml; do not edit.' > requirements.lock.new
	@$(UV) pip compile pyproject.toml --quiet --upgrade --universal --group dev --group bench --group docs \
		--no-emit-index-url --no-annotate --no-header >> requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse build/docs-site docs/api docs/examples/*.rst
