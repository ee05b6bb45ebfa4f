# Commands for developers; `make help` lists them. `make setup check test run` need only python3
# (3.11 or newer). They install a Java for Spark, and Node.js and Chromium for the tests of shape
# clients, from the system's packages if they are missing. `make conformance` also needs a JDK,
# Maven, Go, nginx and PostgreSQL.

PYTHON ?= python3
WORKERS ?= 3
SOAK_MINUTES ?= 30
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JAVA := $(VENV)/.java
WEB := $(VENV)/.web

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test check bench conformance crash soak docs lock format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) $(JAVA) $(WEB) ## make .venv from the lock, install varve, a Java for Spark and the npm client, compile the kernels

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "varve needs Python 3.11 or newer, but '$(PYTHON)' is missing or older:" \
	    "install one and run 'make setup PYTHON=/path/to/python3'" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { \
	  echo "'$(PYTHON)' has no venv module: install it (Debian and Ubuntu: apt install python3-venv)" \
	    "and run 'make setup' again" >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m varve.kernels
	@touch $@

# Tried once: without a Java all but `varve job` works, and that says what is missing.
$(JAVA): | $(READY)
	@$(BIN)/python -m varve.spark.java --install || \
	  echo "going on without Java: 'varve job' and the tests of it will not work until there is one" >&2
	@touch $@

# Tried once as well: what is missing then is told by `make test`, which leaves those tests out.
$(WEB): tests/shape_clients/package-lock.json examples/shapes/package-lock.json | $(READY)
	@$(BIN)/python -m tests.support.web_setup --install >/dev/null
	@touch $@

run: $(READY) $(JAVA) ## show what varve does: crash and recover, compact, tier; then the jobs on Spark, to an erasure
	$(BIN)/varve demo
	@if $(BIN)/python -m varve.spark.java >/dev/null; then \
	  set -x; $(BIN)/varve job demo; \
	else \
	  echo "SKIPPED varve job demo, the jobs on Spark, for want of a Java." >&2; \
	fi

test: $(READY) $(JAVA) $(WEB) ## every test but those against Apache Kafka, MinIO and nginx
	@marks="not java and not go and not nginx"; \
	if ! $(BIN)/python -m varve.spark.java; then \
	  echo "SKIPPED the tests of Spark jobs, for want of a Java; running the others." >&2; \
	  marks="$$marks and not spark"; \
	fi; \
	for mark in $$($(BIN)/python -m tests.support.web_setup); do marks="$$marks and not $$mark"; done; \
	set -x; $(BIN)/python -m pytest -n $(WORKERS) -m "$$marks"

check: $(READY) ## format, lint, types, import contracts, generated pages, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m varve.cli.generate_docs --check
	$(BIN)/codespell

format: $(READY) ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## all benchmarks; one: .venv/bin/python -m benchmarks NAME [--json] [--quick]
	$(BIN)/python -m benchmarks all

conformance: $(READY) $(WEB) ## exchange bytes with Apache Kafka's own code, Debezium, MinIO and nginx; needs a JDK, Maven, Go, nginx, PostgreSQL
	$(BIN)/python -m conformance.minio
	@if command -v java >/dev/null && command -v mvn >/dev/null; then \
	  set -x; $(BIN)/python -m pytest -rs tests/conformance && \
	  $(BIN)/python -m pytest -rs -m "spark and java" tests/spark; \
	else \
	  echo "SKIPPED the tests against Apache Kafka's own code: 'java' and 'mvn' are not both on PATH;" \
	    "install a JDK (17 or newer) and Maven to run them. Running the other tests only." >&2; \
	  set -x; $(BIN)/python -m pytest -rs -m "not java" tests/conformance; \
	fi

crash: $(READY) ## the crash, property and hostile tests with many more rounds, a million mutants; takes hours
	VARVE_ROUNDS=long VARVE_FUZZ_COUNT=1000000 $(BIN)/python -m pytest -n $(WORKERS) --timeout 14400 \
	  -o faulthandler_timeout=14000 tests/crash tests/property tests/hostile

soak: $(READY) ## clients of several kinds against a server that is killed and restarted; SOAK_MINUTES=30
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

docs: $(READY) ## write the generated pages: docs/configuration.md, docs/cli.md, docs/metrics.md
	$(BIN)/python -m varve.cli.generate_docs

lock: $(READY) ## choose the newest versions anew and write requirements.lock
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-header --no-annotate --quiet --output-file requirements.lock

clean: ## remove .venv and everything that was made
	rm -rf $(VENV) build dist demo-data .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache src/*.egg-info tests/shape_clients/node_modules examples/shapes/node_modules
	find src tests benchmarks conformance -name __pycache__ -type d -prune -exec rm -rf {} +
