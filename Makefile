# Every target sets itself up in .venv on a fresh machine.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test sweep bench bless

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,test]'
	mkdir -p $(VENV)/src && ln -sfn "$(CURDIR)" $(VENV)/src/eqsat
	touch $(STAMP)

demo: setup
	$(BIN)/python -m benchmarks.demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/eqsat check rules/ --examples 5
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

# The long runs: every rule with many examples, random programs, slow tests, the case corpus
# where it is present.
sweep: setup
	$(BIN)/eqsat check rules/ --examples 200 --compiled all
	$(BIN)/python -W ignore -m eqsat.tests.engine.mutants.sweep --jobs 2
	$(BIN)/python -W ignore -m eqsat.tests.fuzz.graphs --count 5000 --jobs 2
	$(BIN)/python -m pytest -q

bench: setup
	$(BIN)/python -m benchmarks.run

bless: setup
	$(BIN)/python -m pytest -q --bless
