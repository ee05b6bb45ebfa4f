# Commands for developers; `make help` lists them. `make setup check test run` need only python3
# (3.11 or newer) with venv and pip; tools/setup_environment.py says what it installs before it does.
# `make conformance` also needs a JDK, Maven, Go, nginx and PostgreSQL.

PYTHON ?= python3
WORKERS ?= 4
SOAK_MINUTES ?= 30
VENV := .venv
BIN := $(VENV)/bin
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
SETUP := @$(PYTHON) tools/setup_environment.py

# Images of containers often set it; each of the many processes of a run would compile all it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup ready-run ready-dev ready-test
.PHONY: run test durations check check-tools bench conformance crash soak docs lock format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ready-test ## install all that `make test` needs

ready-run:
	$(SETUP) run

ready-dev:
	$(SETUP) dev

ready-test:
	$(SETUP) test

run: ready-run ## show what varve does: crash and recover, compact, tier; then the jobs on Spark, to an erasure
	$(BIN)/varve demo
	@if $(BIN)/python -m varve.spark.java >/dev/null; then \
	  set -x; $(BIN)/varve job demo; \
	else \
	  echo "SKIPPED varve job demo, the jobs on Spark, for want of a Java." >&2; \
	fi

test: ready-test ## every test but those against Apache Kafka, MinIO and nginx
	@marks="not java and not go and not nginx"; \
	if ! $(BIN)/python -m varve.spark.java; then \
	  echo "SKIPPED the tests of Spark jobs, for want of a Java; running the others." >&2; \
	  marks="$$marks and not spark"; \
	fi; \
	for mark in $$($(BIN)/python -m tests.support.web_setup); do marks="$$marks and not $$mark"; done; \
	set -x; $(BIN)/python -m pytest -n $(WORKERS) -m "$$marks"

durations: ready-test ## run all tests and record how long each file takes, which orders the next run
	$(BIN)/python -m pytest -n $(WORKERS) -m "not java and not go and not nginx" --record-durations

check: ready-dev ## format, lint, types (of the docs too), import contracts, generated pages, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tools/test_documented_types.py
	$(BIN)/lint-imports
	$(BIN)/python -m tools.generate_docs --check
	$(BIN)/codespell

format: ready-dev ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: ready-dev ## all benchmarks; one: .venv/bin/python -m benchmarks NAME [--json] [--quick]
	$(BIN)/python -m benchmarks all

conformance: ready-test ## exchange bytes with Apache Kafka's own code, Debezium, MinIO and nginx; needs a JDK, Maven, Go, nginx, PostgreSQL
	$(BIN)/python -m tests.conformance.tools.minio
	@if command -v java >/dev/null && command -v mvn >/dev/null; then \
	  set -x; $(BIN)/python -m pytest -rs tests/conformance && \
	  $(BIN)/python -m pytest -rs -m "spark and java" tests/spark; \
	else \
	  echo "SKIPPED the tests against Apache Kafka's own code: 'java' and 'mvn' are not both on PATH;" \
	    "install a JDK (17 or newer) and Maven to run them. Running the other tests only." >&2; \
	  set -x; $(BIN)/python -m pytest -rs -m "not java" tests/conformance; \
	fi

check-tools: ready-test ## the tests of the benchmarks and of the soak
	$(BIN)/python -m pytest -p tests.conftest -n $(WORKERS) benchmarks/tests tools/soak/tests

crash: ready-dev ## the crash, property, hostile and seam tests with many more rounds, a million mutants; takes hours
	VARVE_ROUNDS=long VARVE_FUZZ_COUNT=1000000 $(BIN)/python -m pytest -n $(WORKERS) --timeout 14400 \
	  -o faulthandler_timeout=14000 tests/crash tests/property tests/hostile tests/seams

soak: ready-dev ## clients of several kinds against a server that is killed and restarted; SOAK_MINUTES=30
	$(BIN)/python -m tools.soak --minutes $(SOAK_MINUTES)

docs: ready-dev ## write the generated pages of docs/reference
	$(BIN)/python -m tools.generate_docs

lock: ready-dev ## choose the newest versions and write both locks, for varve alone and with developers' tools
	$(BIN)/uv pip compile pyproject.toml --extra spark --group dev --upgrade $(LOCK_OPTIONS) --output-file requirements-dev.lock
	$(BIN)/uv pip compile pyproject.toml --extra spark --group setup --constraint requirements-dev.lock --upgrade \
	  $(LOCK_OPTIONS) --output-file requirements.lock

clean: ## remove .venv and everything that was made
	rm -rf $(VENV) build dist demo-data .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache src/*.egg-info tests/shape_clients/node_modules examples/shapes/node_modules
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
