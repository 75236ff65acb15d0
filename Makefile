# `make help` lists the targets. Everything runs in the repository's own .venv, created on first use.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test lint types bench house_prices clean

help: ## list the targets
	@grep -hE '^[a-z0-9_]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	@echo "installing into $(VENV): about 6 GB, a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP) ## create .venv with the tested versions of everything

demo: $(STAMP) ## immunize a linear extractor on embedded data, offline: a table and a figure
	@$(BIN)/python -m immunize.train hydra.run.dir=outputs/demo overwrite=true
	@echo "figure: outputs/demo/norm_ratio.png"

test: $(STAMP) ## run the test suite (set IMMUNIZE_DATA to include the tests on real data)
	@$(BIN)/python -m pytest -m "not wheel"

lint: $(STAMP) ## ruff: style, docstrings, formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

bench: $(STAMP) ## time one Algorithm 1 step against the reference path
	@$(BIN)/python -m experiments.bench

house_prices: $(STAMP) ## House Prices, every method, 5 seeds: records, table and figure in experiments/house_prices
	@$(BIN)/python -m experiments.house_prices

clean: ## remove outputs and caches, not the .venv
	rm -rf outputs multirun build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
