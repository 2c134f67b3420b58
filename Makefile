PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GIVEN := pyproject.toml constraints.txt .ci/install.py

# Stamps of what is installed. Each of the later three holds all that the ones before it hold.
DEMO := $(VENV)/.demo
ALL := $(VENV)/.installed
DEV := $(VENV)/.dev
BENCH := $(VENV)/.bench

comma := ,
USED = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
NEW_ENOUGH = $(shell $(USED) -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)
FOUND = $(or $(shell $(USED) --version 2>/dev/null),missing)
NEEDS = Onward needs Python 3.11 or newer, and $(USED) is $(FOUND): $(if $(wildcard $(BIN)/python),run make clean$(comma) then )name another one, as in make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12

TORCH = $(wildcard $(VENV)/lib/python3*/site-packages/torch/version.py)

define room
	$(if $(TORCH),@echo "Installing into $(VENV)$(comma) which has PyTorch already.",@echo "Installing into $(VENV): about $(1) GB on disk with PyTorch's CPU build, several GB more where pip picks the GPU build.")
	$(if $(TORCH),,@echo "To save room and time, install PyTorch's own CPU build of torch 2.13.0 into $(VENV) first (see README).")
endef

define install
	$(if $(filter True,$(NEW_ENOUGH)),,$(error $(NEEDS)))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/install.py
endef

.PHONY: demo install test test-fast test-long lint clean

# A file of tests stays in one process: its fixtures are made once. Tests with servers wait often, hence three
# processes on two cores. The order is that of tests/conftest.py: files of few tests would otherwise come last,
# and the longest are among them.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PARALLEL := -n $(if $(filter 1 2,$(CORES)),3,4) --dist loadfile --no-loadscope-reorder

demo: $(DEMO)
	$(BIN)/onward demo

install: $(ALL)

test: $(DEV)
	$(BIN)/python -m pytest $(PARALLEL) tests

test-fast: $(DEV)
	$(BIN)/python -m pytest $(PARALLEL) -m "not long and not slow" tests/unit

test-long: $(BENCH)
	$(BIN)/python -m pytest -m long

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

$(DEMO): $(GIVEN)
	$(call room,2.2)
	$(install) server lm demo
	touch $@

$(ALL): $(GIVEN)
	$(call room,2.3)
	$(install) all
	$(BIN)/onward models pull smollm2
	touch $(DEMO) $@
	@echo "Installed. Next: source $(BIN)/activate, then onward up (the service) or onward demo."

$(DEV): $(ALL)
	$(install) all dev
	touch $@

$(BENCH): $(DEV)
	$(install) all dev bench
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
