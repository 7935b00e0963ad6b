# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install dev demo test test-full test-optimised lint fuzz docs bench package clean

# the package alone, for those who use it
install: $(VENV)/.installed

# with what tests, checks, documentation and benchmarks need besides
dev: $(VENV)/.dev

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $(VENV)/.installed $@

demo: install
	$(BIN)/heedful demo

test: dev
	$(BIN)/python -m pytest

# grids, notebooks, long kills and fuzzing as well, about twice as long; then the suite under `python -O`
test-full: dev
	$(BIN)/python -m pytest --full
	$(MAKE) test-optimised

# the suite as under `python -O`: without the asserts of the package, in the processes that tests start too
test-optimised: dev
	PYTHONOPTIMIZE=1 $(BIN)/python -m pytest

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: dev
	$(BIN)/python tests/fuzz/fuzz.py $(ARGS)

docs: dev
	$(BIN)/python -W error::SyntaxWarning -m sphinx -q -W -b html docs build/site
	@echo build/site/index.html

bench: dev
	$(BIN)/python -m benchmarks.speed --docs docs/benchmarks.md $(ARGS)

# wheel and source distribution in dist/, the wheel tried in an empty environment
package: dev
	$(BIN)/python .ci/package.py

clean:
	rm -rf $(VENV) build dist docs/api docs/transformer .pytest_cache .mypy_cache .ruff_cache
