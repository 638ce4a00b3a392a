# `make` alone lists the targets. All paths are relative, so that the name of the folder may contain spaces.

PYTHON  ?= python3
# Three more than cores: some tests always wait, for a lease to expire or a process to start (tools/xdist_order.py).
WORKERS ?= $(shell expr $$(nproc) + 3)
BIN     := .venv/bin

# The programs that the tests start.
SERVICES := postgresql pgbouncer redis rabbitmq chromium curl iproute2 prometheus

.DEFAULT_GOAL := help
.PHONY: image-test screenshots help up test test-clock test-django check lint types openapi audit bench bench-peers performance-page peers-page swarm soak mutants walk reference lock clean run-packages dev-packages services

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

up: run-packages ## install what is needed, and run Timeball here until Ctrl-C
	@trap : INT; $(BIN)/timeball up $(ARGS)

# Tests start hundreds of processes, which must not compile Timeball again.
test: export PYTHONDONTWRITEBYTECODE =
test: dev-packages services ## install what is needed, and run all tests (ARGS="-k reaper" for some)
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# The folders whose tests read the real clock.
CLOCK_TESTS := tests/api tests/sdk tests/cli tests/client tests/contrib tests/dashboard tests/handlers tests/application tests/testing

test-clock: export PYTHONDONTWRITEBYTECODE =
test-clock: dev-packages services ## run the tests that read the clock at midnight, at the end of February and at clock changes (AT=2026-11-19T01:45Z for one instant)
	@sh scripts/install-test-services compiler
	@$(BIN)/python -m tools.fake_time $(if $(AT),--at $(AT)) -q -n $(WORKERS) $(or $(ARGS),$(CLOCK_TESTS))

# In an environment of its own: .venv has one version of Django.
test-django: services ## run the tests of contrib/django with another version of Django (DJANGO=6.0 PYTHON=python3.12)
	@test -x .venv-django/bin/python || $(PYTHON) -m venv .venv-django
	@.venv-django/bin/python -m pip install --quiet -r requirements/dev.lock
	@.venv-django/bin/python -m pip install --quiet "django==$(or $(DJANGO),6.0).*"
	@PYTHONPATH=src .venv-django/bin/python -m pytest -n $(WORKERS) $(or $(ARGS),tests/contrib)

check: lint types openapi audit ## run all static checks: lint, types, openapi, audit

lint: dev-packages ## check style, format and the imports between packages
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/lint-imports

types: dev-packages ## check types with mypy (the tests check the public API with pyright)
	@$(BIN)/python -m mypy

openapi: dev-packages ## lint the OpenAPI document with Spectral and Redocly
	@sh scripts/install-test-services nodejs
	@sh scripts/lint-openapi

audit: dev-packages ## look for known vulnerabilities in the locked packages
	@sh scripts/audit-packages requirements/run.lock

# Nor must the processes that are measured: an installed Timeball is compiled.
bench bench-peers: export PYTHONDONTWRITEBYTECODE =
bench: dev-packages services ## run the benchmarks (ONLY=lateness for one, FULL=1 for the long versions)
	@FULL=$(FULL) $(BIN)/python -m bench $(ONLY)

bench-peers: dev-packages services ## run the same work on other job queues (ONLY=drain, PEERS="celery bullmq", FULL=1, SHORT=1)
	@sh scripts/install-test-services nodejs
	@FULL=$(FULL) SHORT=$(SHORT) PEERS="$(PEERS)" $(BIN)/python -m bench.peers $(ONLY)

performance-page: dev-packages ## write the figures of the last runs into docs/explanation/performance.md and docs/internals/speed.md
	@$(BIN)/python -m bench.performance_page

peers-page: dev-packages ## write the figures of `make bench-peers` into docs/explanation/peers.md, and draw them
	@$(BIN)/python -m bench.peers.page

swarm: dev-packages services ## simulate schedulers and workers with random faults (SEEDS=1000 FIRST=0); ONLY=17 or a saved plan shows each step
	@SWARM_ONLY="$(ONLY)" SWARM_SEEDS=$(or $(SEEDS),200) SWARM_FIRST=$(or $(FIRST),0) $(BIN)/python -m pytest -q --timeout 0 \
		$(if $(ONLY),-s,-n $(WORKERS)) tests/engine/simulation/test_swarm.py

# New seeds every day: those of yesterday would find nothing new.
soak: dev-packages services ## run the system tests with random faults for a long time (MINUTES=60 SEEDS=5000)
	@SWARM_SEEDS=$(or $(SEEDS),5000) SWARM_FIRST=$(or $(FIRST),$(shell date -u +%Y%m%d)00000) \
		$(BIN)/python -m pytest -q -n $(WORKERS) --timeout 0 tests/engine/simulation/test_swarm.py
	@CROWD=100000 $(BIN)/python -m pytest -q --timeout 0 tests/engine/test_crowds.py
	@SOAK_MINUTES=$(or $(MINUTES),60) $(BIN)/python -m pytest --timeout 0 tests/system $(ARGS)

mutants: dev-packages services ## remove guards from the code, one at a time, and check that a test fails (ONLY="fence" for some)
	@$(BIN)/python -m tools.mutants $(ONLY)

screenshots: dev-packages services ## take pictures of every page of the dashboard, into build/screenshots
	@$(BIN)/python -m tools.screenshots

image-test: ## build the image and run compose.yaml in a Docker Engine (Debian 12, as root; ten minutes)
	@sh scripts/image-test

walk: dev-packages ## print the files that a job, an enqueue and a page view pass
	@$(BIN)/python -m tools.walk

reference: dev-packages ## generate the reference pages from the program
	@$(BIN)/python -m tools.reference

lock: dev-packages ## upgrade and lock the versions of all packages
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --upgrade --quiet \
		--generate-hashes --universal --python-version 3.11 -o requirements/dev.lock
	@$(BIN)/uv pip compile pyproject.toml requirements/build.in --all-extras --constraint requirements/dev.lock --quiet \
		--generate-hashes --universal --python-version 3.11 -o requirements/run.lock
	@$(BIN)/uv pip compile pyproject.toml requirements/build.in --extra server --extra redis --extra rabbitmq --constraint requirements/dev.lock --quiet \
		--generate-hashes --universal --python-version 3.11 -o requirements/image.lock

clean: ## remove what was installed and cached here, but not your data in .timeball
	@rm -rf bench/peers/.environments .venv .venv-django .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

run-packages:
	@sh scripts/install-packages requirements/run.lock "$(PYTHON)"

dev-packages:
	@sh scripts/install-packages requirements/dev.lock "$(PYTHON)"

services:
	@sh scripts/install-test-services $(SERVICES)
