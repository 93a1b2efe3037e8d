# make demo and make test set themselves up; nothing but Python 3.11 to 3.13 (tested: 3.11, 3.12) and make is needed.
PYTHON ?= $(shell command -v python3.12 >/dev/null 2>&1 && python3.12 -c "" 2>/dev/null && echo python3.12 || (command -v python3.11 >/dev/null 2>&1 && python3.11 -c "" 2>/dev/null && echo python3.11) || (command -v python3.13 >/dev/null 2>&1 && python3.13 -c "" 2>/dev/null && echo python3.13) || echo python3)
BIN := .venv/bin
RUN ?= runs/dates

.PHONY: help setup demo test check lint format clean

help:
	@echo "make demo    train the date translator, print its score, draw where it looked (a minute of training)"
	@echo "make test    run the tests"
	@echo "make check   what CI runs: ruff, mypy, import-linter, tests"
	@echo "make format  format the code"
	@echo "make setup   only create .venv and install"

setup: .venv/installed

# torch comes first and pinned, so that the resolver takes exactly that build for everything after it.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'Sightline needs Python 3.11 or newer, this is ' + sys.version.split()[0] + '; set PYTHON=python3.11'"
	@test -x $(BIN)/python || (echo "creating .venv" && $(PYTHON) -m venv .venv)
	@echo "installing (a minute or two the first time)"
	@$(BIN)/pip install -q --disable-pip-version-check --no-compile -c constraints.txt torch
	@$(BIN)/pip install -q --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # as pip would, but on all cores; some files are no Python 3
	@touch $@

# Without a CUDA device Triton interprets our kernels in their tests. CUDA builds of torch bring their own; elsewhere it
# is a gigabyte that only `make check` asks for, and there is one for Linux alone: on other systems those tests are skipped.
.venv/kernels: .venv/installed
	@$(BIN)/python -c "import triton" 2>/dev/null || test "$$(uname)" != Linux || \
	  (echo "installing Triton" && $(BIN)/pip install -q --disable-pip-version-check "triton==3.9.*")
	@touch $@

demo: setup
	@rm -rf $(RUN)
	@$(BIN)/sightline demo --out $(RUN)

test: setup
	@$(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

check: lint .venv/kernels
	@$(MAKE) --no-print-directory test

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
