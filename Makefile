PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-long lint clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV): about 3.2 GB on disk with PyTorch's CPU build, several GB more where pip picks the GPU build."
	@echo "To save room and time, install PyTorch's own CPU build of torch 2.13.0 into $(VENV) first (see README)."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[all,dev]'
	$(BIN)/onward models pull smollm2
	touch $@

demo: install
	$(BIN)/onward demo

test: install
	$(BIN)/python -m pytest

$(VENV)/.bench: $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[all,dev,bench]'
	touch $@

test-long: $(VENV)/.bench
	$(BIN)/python -m pytest -m long

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
