# Everything sets itself up: `make demo` and `make test` work on a fresh checkout with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test quick soak lint types format bench clean

demo: $(VENV)/.runtime
	@$(BIN)/remoterun demo

# Not in the recipe: a line that names it is run by `make -n`, too.
export MAKE
test:
	@tests/run

quick: $(VENV)/.test
	$(BIN)/python -m pytest -q -m "not lab and not slow"

soak: $(VENV)/.test
	REMOTERUN_SOAK=1 $(BIN)/python -m pytest tests/unit -m hypothesis
	REMOTERUN_SOAK=1 $(BIN)/python -m pytest tests/lab/test_random_faults.py tests/lab/test_connections.py -k "one_true_outcome or killed_controller"

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.test
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 --follow-imports silent remoterun/remote remoterun/payloads

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

# The environment alone: Debian's python3 lacks ensurepip until python3-venv is installed.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "remoterun needs Python 3.11 or later; set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Debian's python3-venv"; apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null; \
	  else echo "Python's venv module is missing: install python3-venv" >&2; exit 1; fi; }
	@echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(VENV)/bin/python
	@echo "Installing remoterun into $(VENV)"; $(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	@echo "Installing remoterun and its test tools into $(VENV) (torch among them: this takes a while)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -e '.[test]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores; pip compiles on one, and some are not for this Python
	@touch $@ $(VENV)/.runtime
