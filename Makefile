# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: install demo test lint fuzz docs bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/heedful demo

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: install
	$(BIN)/python tests/fuzz/fuzz.py $(ARGS)

docs: install
	$(BIN)/python -W error::SyntaxWarning -m sphinx -q -W -b html docs build/site
	@echo build/site/index.html

bench: install
	$(BIN)/python -m benchmarks.speed --docs docs/benchmarks.md $(ARGS)

clean:
	rm -rf $(VENV) build dist docs/transformer .pytest_cache .mypy_cache .ruff_cache
