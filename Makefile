# Two commands do all set-up: `make plan` (the light install, then the first example) and `make test`
# (what the tests need, then everything that is checked).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXAMPLE ?= examples/ppo-7b-16xa100.yaml

PEERS ?= .venv-peers
PEER_PACKAGES := verl==0.9.1 openrlhf==0.11.2 transferqueue==0.1.11

.PHONY: plan test check check-all fast format figures validate accuracy ablation calibrate clean

plan: $(VENV)/.light
	$(BIN)/hybridmap plan $(EXAMPLE)

test: $(VENV)/.dev
	$(MAKE) check

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not external"

# Also what needs other systems' packages, in an environment of their own: minutes, and some gigabytes.
check-all: check $(PEERS)/.ready
	$(BIN)/pytest -m external
	$(BIN)/python -m benchmarks.exports.check --peers $(PEERS) --out benchmarks/results/exports.md

$(PEERS)/.ready: benchmarks/exports/requirements.txt constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PEER_PACKAGES)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r $<
	touch $@

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

$(VENV)/.light: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.light
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
