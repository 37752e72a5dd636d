# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# What gives a suite's processes less priority than others.
BEHIND ?=
# Where properties are searched from: another place in each run. A run that failed is repeated by its seed.
SEED ?= $(shell od -An -N8 -tu8 /dev/urandom | tr -d ' ')

# Installs packages where that is possible: as root, on Debian and what comes from it; one run after the other.
apt = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && flock /run/lock/slicekeeper-apt sh -c \
  'apt-get update -qq && apt-get -o DPkg::Lock::Timeout=120 install -y -qq $(1) >/dev/null'; }

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | column -t -s "$$(printf '\t')" 2>/dev/null \
	  || grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST)

# Debian splits venv off its Python: where it is missing and we may, install it; else say what to do.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." \
	    "Name another one: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "Setting up $(VENV) (once, about a minute)"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(call apt,python3-venv) || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: run
run: $(VENV)/.ready ## Local mode over manifests/examples; stays up. ARGS=--once ends with a table
	@$(BIN)/slicekeeper local $(ARGS)

.PHONY: test
test: check functional unit-beside-cluster-test vcuda-test ## Every suite that this machine can carry

# A cluster mostly waits: the unit tests take the rest of the processors meanwhile. What both would install from Debian
# packages, `functional` has installed before.
.PHONY: unit-beside-cluster-test
unit-beside-cluster-test: $(VENV)/.ready
	@$(MAKE) --no-print-directory unit BEHIND="nice -n 10" & unit=$$!; status=0; \
	$(MAKE) --no-print-directory cluster-test || status=$$?; \
	wait $$unit || status=$$?; exit $$status

.PHONY: check
check: $(VENV)/.ready ## Format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: unit
unit: $(VENV)/.ready ## Unit tests and golden pairs; SEED=… repeats a search for counterexamples
	$(BEHIND) $(BIN)/pytest -n logical --maxprocesses 4 --hypothesis-seed=$(SEED) tests/unit tests/golden $(ARGS)

.PHONY: test-pythons
test-pythons: $(VENV)/.ready ## Unit suite, with few examples and on SQLite, and local mode on each supported Python, 3.11 to 3.14
	$(BIN)/python tests/support/pythons.py $(ARGS)

.PHONY: functional
functional: $(VENV)/.ready ## Parts as processes, local mode, the built wheel
	$(BIN)/pytest -n 2 --dist loadfile tests/functional $(ARGS)

.PHONY: vcuda-test
vcuda-test: $(VENV)/.ready ## The limiter and the arbiter on the fake driver
	@if command -v gcc >/dev/null || $(call apt,gcc libc6-dev); then $(MAKE) -C vcuda test PYTHON=$(CURDIR)/$(BIN)/python; \
	  else echo "vcuda-test is left out: there is no gcc; on Debian or Ubuntu: apt-get install gcc libc6-dev" >&2; fi

.PHONY: cluster-test
cluster-test: $(VENV)/.ready ## Everything on a real Kubernetes; the first run builds it, about 10 minutes
	$(BIN)/pytest tests/cluster $(ARGS)

.PHONY: cluster-test-oldest
cluster-test-oldest: $(VENV)/.ready ## The same on Kubernetes 1.30, the oldest that is supported
	SLICEKEEPER_CLUSTER_OLDEST=1 $(BIN)/pytest tests/cluster $(ARGS)

.PHONY: cluster-test-cert-manager
cluster-test-cert-manager: $(VENV)/.ready ## The component certManager with a real cert-manager, which the first run builds
	SLICEKEEPER_CLUSTER_CERT_MANAGER=1 $(BIN)/pytest tests/cluster/test_c14_cert_manager.py $(ARGS)

.PHONY: cluster
cluster: $(VENV)/.ready ## A Kubernetes with fake GPUs and Slicekeeper to play with; prints its KUBECONFIG
	@PYTHONPATH=tests $(BIN)/python -m cluster.harness up

.PHONY: manifests
manifests: $(VENV)/.ready ## Render the chart: manifests/install.yaml, and build/install-*.yaml
	@PYTHONPATH=tests $(BIN)/python -m cluster.harness render

.PHONY: cluster-down
cluster-down: $(VENV)/.ready ## End it
	@PYTHONPATH=tests $(BIN)/python -m cluster.harness down

BENCHMARKS := webhook/reviews webhook/growth timekeeper/ledger scheduler/run nodeagent/starts sidecar/run limiter/bench gpu/limiter_checks gpu/sharing gpu/callbacks gpu/killed_parents gpu/language_models gpu/agent_checks gpu/containers

.PHONY: bench
bench: $(VENV)/.ready ## All benchmarks; each prints its table and the command that makes it
	@for name in $(BENCHMARKS); do echo "## benchmarks/$$name.py"; $(BIN)/python "benchmarks/$$name.py"; done

.PHONY: clean
clean: ## Remove what the targets above made in the checkout
	rm -rf $(VENV) .slicekeeper .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	$(MAKE) -C vcuda clean
