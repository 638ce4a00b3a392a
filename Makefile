# `make` alone lists the verbs. All paths are relative, so that a folder with a space in its name will do.

PYTHON  ?= python3
# Three more than there are cores: some tests always wait, for a lease to run out or a process to start (tools/xdist_order.py).
WORKERS ?= $(shell expr $$(nproc) + 3)
BIN     := .venv/bin

# Programs the tests start by themselves.
SERVICES := postgresql pgbouncer redis rabbitmq chromium curl iproute2

.DEFAULT_GOAL := help
.PHONY: screenshots reference help up test test-clock check lint types openapi audit bench bench-peers performance-page peers-page swarm soak mutants reference lock clean run-packages dev-packages services

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

up: run-packages ## install what is needed and run Timeball here, until Ctrl-C
	@trap : INT; $(BIN)/timeball up $(ARGS)

# Tests start hundreds of processes: none of them is to compile us anew.
test: export PYTHONDONTWRITEBYTECODE =
test: dev-packages services ## install what is needed and run all tests (ARGS="-k reaper" for some)
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# The folders whose tests read the real clock.
CLOCK_TESTS := tests/api tests/sdk tests/cli tests/client tests/contrib tests/dashboard tests/handlers tests/application tests/testing

test-clock: export PYTHONDONTWRITEBYTECODE =
test-clock: dev-packages services ## the tests that read the clock, at midnight, at the end of February and as clocks change (AT=2026-11-19T01:45Z for one instant)
	@sh scripts/install-test-services compiler
	@$(BIN)/python -m tools.fake_time $(if $(AT),--at $(AT)) -q -n $(WORKERS) $(or $(ARGS),$(CLOCK_TESTS))

check: lint types openapi audit ## everything that can be said without running: lint, types, the API's document, known vulnerabilities

lint: dev-packages ## style, format and the arrows between modules
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/lint-imports

types: dev-packages ## strict type checking (pyright checks the public face, in the tests)
	@$(BIN)/python -m mypy

openapi: dev-packages ## the OpenAPI document, by the linters people use
	@sh scripts/install-test-services nodejs
	@sh scripts/lint-openapi

audit: dev-packages ## known vulnerabilities in the locked packages, where the advisory database can be reached
	@sh scripts/audit-packages requirements/run.lock

# Nor are the nodes that are measured: whoever has installed us has us compiled.
bench bench-peers: export PYTHONDONTWRITEBYTECODE =
bench: dev-packages services ## the benchmarks (ONLY=lateness for one, FULL=1 for the long versions)
	@FULL=$(FULL) $(BIN)/python -m bench $(ONLY)

bench-peers: dev-packages services ## the same work on other job queues (ONLY=drain, PEERS="celery bullmq", FULL=1, SHORT=1)
	@sh scripts/install-test-services nodejs
	@FULL=$(FULL) SHORT=$(SHORT) PEERS="$(PEERS)" $(BIN)/python -m bench.peers $(ONLY)

performance-page: dev-packages ## write the figures of the last runs into docs/explanation/performance.md and docs/internals/speed.md
	@$(BIN)/python -m bench.performance_page

peers-page: dev-packages ## write the figures of `make bench-peers` into docs/explanation/peers.md, and draw them
	@$(BIN)/python -m bench.peers.page

swarm: dev-packages services ## whatever seeds do to schedulers and workers (SEEDS=1000 FIRST=0); ONLY=17 or a kept plan tells what happens
	@SWARM_ONLY="$(ONLY)" SWARM_SEEDS=$(or $(SEEDS),200) SWARM_FIRST=$(or $(FIRST),0) $(BIN)/python -m pytest -q --timeout 0 \
		$(if $(ONLY),-s,-n $(WORKERS)) tests/engine/simulation/test_swarm.py

# Other seeds every day: those of yesterday would find nothing new.
soak: dev-packages services ## the system tests with random faults, for long (MINUTES=60 SEEDS=5000)
	@SWARM_SEEDS=$(or $(SEEDS),5000) SWARM_FIRST=$(or $(FIRST),$(shell date -u +%Y%m%d)00000) \
		$(BIN)/python -m pytest -q -n $(WORKERS) --timeout 0 tests/engine/simulation/test_swarm.py
	@CROWD=100000 $(BIN)/python -m pytest -q --timeout 0 tests/engine/test_crowds.py
	@SOAK_MINUTES=$(or $(MINUTES),60) $(BIN)/python -m pytest --timeout 0 tests/system $(ARGS)

mutants: dev-packages services ## take guards out one at a time and see that the tests notice (ONLY="fence" for some)
	@$(BIN)/python -m tools.mutants $(ONLY)

screenshots: dev-packages services ## take pictures of every page of the dashboard, into docs/screenshots
	@$(BIN)/python -m tools.screenshots

reference: dev-packages ## write the pages of the reference that are made from the program
	@$(BIN)/python -m tools.reference

lock: dev-packages ## choose and lock the versions of all packages anew
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --upgrade --quiet \
		--generate-hashes --universal --python-version 3.11 -o requirements/dev.lock
	@$(BIN)/uv pip compile pyproject.toml requirements/build.in --all-extras --constraint requirements/dev.lock --quiet \
		--generate-hashes --universal --python-version 3.11 -o requirements/run.lock
	@$(BIN)/uv pip compile pyproject.toml requirements/build.in --extra server --extra redis --extra rabbitmq --constraint requirements/dev.lock --quiet \
		--generate-hashes --universal --python-version 3.11 -o requirements/image.lock

clean: ## remove what was installed and cached here; your data in .timeball stays
	@rm -rf bench/peers/.environments .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

run-packages:
	@sh scripts/install-packages requirements/run.lock "$(PYTHON)"

dev-packages:
	@sh scripts/install-packages requirements/dev.lock "$(PYTHON)"

services:
	@sh scripts/install-test-services $(SERVICES)
