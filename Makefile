# Two commands do all set-up: `make plan` (the light install, then the first example) and `make test`
# (what the tests need, then everything that is checked).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXAMPLE ?= examples/ppo-7b-16xa100.yaml

.PHONY: plan test check fast format figures validate accuracy ablation calibrate loop clean

plan: $(VENV)/.light
	$(BIN)/hybridmap plan $(EXAMPLE)

test: $(VENV)/.dev
	$(MAKE) check

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

fast: $(VENV)/.dev
	$(BIN)/pytest -m "not slow"

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

figures: $(VENV)/.light
	$(BIN)/python -m benchmarks.paper_figures

# Every published table, predicted: errors in validation-out/, the page docs/accuracy.md, the widths of intervals.
PUBLISHED := benchmarks/published
VALIDATE = $(BIN)/python -m benchmarks.validation --rl $(PUBLISHED)/rl_steps.csv \
	--training $(PUBLISHED)/training.csv --generation $(PUBLISHED)/generation.csv --paper $(PUBLISHED)

validate: $(VENV)/.dev
	$(VALIDATE) --out validation-out

accuracy: $(VENV)/.dev
	$(VALIDATE) --docs docs/accuracy.md

# What each fitted constant is worth: errors with it and with its term left out; some minutes.
ablation: $(VENV)/.dev
	$(BIN)/python -m benchmarks.validation.ablation --out benchmarks/validation/ablation.csv

calibrate: $(VENV)/.dev
	$(VALIDATE) --calibrate

# Measure this machine, then the shipped runs and placements against it: some minutes, on an otherwise idle machine.
loop: $(VENV)/.dev
	$(BIN)/python -m benchmarks.loop --out loop-out

$(VENV)/.light: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.light
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
