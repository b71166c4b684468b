# Two commands do all set-up: `make plan` (the light install, then the first example) and `make test`
# (what the tests need, then everything that is checked).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXAMPLE ?= examples/ppo-7b-16xa100.yaml

PEERS ?= .venv-peers
PEER_PACKAGES := verl==0.9.1 openrlhf==0.11.2 transferqueue==0.1.11

# What is imported is compiled once, not by every process anew, in containers too.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: plan test check static parity ci thorough check-all round-trip tests-of-runs tests-of-plans tests-of-exports tests-of-commands tests-of-the-face thorough-engines thorough-parity thorough-launches thorough-runs thorough-pages thorough-plans browser loop docs fast format figures pictures validate accuracy ablation calibrate sizing mutation pythons lock sbom clean

plan: $(VENV)/.light
	$(BIN)/hybridmap plan $(EXAMPLE)
	@echo "for the command hybridmap in this shell: . $(BIN)/activate"

test: $(VENV)/.dev
	$(MAKE) check

# A Chromium for the tests of pages: the machine's, or Debian's where we may install it. Without one those tests are
# skipped, or fail where CI is set.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "no chromium and no right to install one: the tests of pages will be skipped (apt-get install chromium)"

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

check: $(VENV)/.dev
	$(MAKE) -j2 --output-sync=target tests-of-runs tests-of-plans tests-of-exports tests-of-commands tests-of-the-face static

# What needs no run: form, types, who imports whom, code that nothing uses, the documents.
static: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(MAKE) docs

# Parts, two at a time, the longest first, so that none runs alone at the end: what starts ranks; estimates and the
# search; pages, documents; commands; the rest.
SHORT := -m "not external and not long and not thorough"
tests-of-runs: $(VENV)/.dev
	$(BIN)/pytest $(SHORT) tests/executor tests/benchmarks

tests-of-plans: $(VENV)/.dev
	$(BIN)/pytest $(SHORT) tests/profiles tests/simulator tests/mapper

tests-of-exports: $(VENV)/.dev
	$(BIN)/pytest $(SHORT) tests/hybridmap/exports tests/hybridmap/ui tests/hybridmap/docs

tests-of-commands: $(VENV)/.dev
	$(BIN)/pytest $(SHORT) tests/hybridmap/commands

tests-of-the-face: $(VENV)/.dev
	$(BIN)/pytest $(SHORT) $(addprefix --ignore=tests/hybridmap/,exports ui docs commands) \
		tests/hybridmap tests/test_architecture.py tests/test_requirements.py

# What continuous integration runs beside `make test`: layouts and engines beside one process, the search beside
# brute force.
parity: $(VENV)/.dev
	$(MAKE) -j2 --output-sync=target thorough-parity thorough-engines thorough-plans

# Both, within twenty minutes on two cores, as one queue, so that neither core waits for the other but at its end: the
# longest first, what starts ranks of Ray (runs, parity) one after the other. No run after this one has its cache of
# types.
ci: export MYPY_CACHE_DIR := /dev/null
ci: $(VENV)/.dev
	$(MAKE) -j2 --output-sync=target tests-of-runs tests-of-plans tests-of-the-face thorough-parity tests-of-commands \
		tests-of-exports static thorough-engines thorough-plans

# All tests of tens of seconds: also transitions, clusters, recovery, commands, pages; and the light install of later Pythons.
thorough: $(VENV)/.dev browser
	$(MAKE) -j2 --output-sync=target thorough-engines thorough-pages thorough-launches thorough-parity thorough-runs thorough-plans pythons

THOROUGH := -m "thorough and not external and not long"
ENGINES := tests/executor/engines
APART := tests/executor/engines/test_disaggregated.py
PARITY := tests/executor/test_run_parity.py $(APART)
LAUNCHES := $(addprefix tests/executor/,launch recovery test_run_ray.py)
# Without what needs ranks of Ray: those of the other lane are started already.
thorough-engines: $(VENV)/.dev
	$(BIN)/pytest $(THOROUGH) --ignore=$(APART) $(ENGINES)

thorough-parity: $(VENV)/.dev
	$(BIN)/pytest $(THOROUGH) $(PARITY)

thorough-launches: $(VENV)/.dev
	$(BIN)/pytest $(THOROUGH) $(LAUNCHES)

thorough-runs: $(VENV)/.dev
	$(BIN)/pytest $(THOROUGH) $(addprefix --ignore=,$(ENGINES) $(PARITY) $(LAUNCHES)) tests/executor

thorough-pages: $(VENV)/.dev
	$(BIN)/pytest $(THOROUGH) tests/hybridmap

thorough-plans: $(VENV)/.dev
	$(BIN)/pytest $(THOROUGH) --ignore=tests/executor --ignore=tests/hybridmap tests

# Also what takes minutes (every pair of layouts on Megatron-Core and vLLM, 500 random transitions, every example that a
# property draws, searches for the paper's placements) and what needs other systems' packages, in an environment of their
# own: some gigabytes. NeMo-RL and slime have none: NEMO_RL=CHECKOUT and SLIME=CHECKOUT check their exports.
check-all: export DRAWS := all
check-all: export RAY_AUTH_MODE := disabled
check-all: check thorough $(PEERS)/.ready
	$(BIN)/pytest -m "long or external"
	$(BIN)/python -m benchmarks.transition
	$(BIN)/python -m benchmarks.exports.check --peers $(PEERS) $(if $(NEMO_RL),--nemo-rl $(NEMO_RL)) $(if $(SLIME),--slime $(SLIME)) --out benchmarks/results/exports.md

$(PEERS)/.ready: benchmarks/exports/requirements.txt constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PEER_PACKAGES)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r $<
	touch $@

# The light install and the first example on every later Python that the machine has, each in an environment of its own.
LATER_PYTHONS := 3.12 3.13 3.14
pythons:
	@for version in $(LATER_PYTHONS); do \
		export PYENV_VERSION=$$version; \
		if python$$version -c "" 2>/dev/null; then \
			echo "Python $$version"; \
			$(MAKE) --no-print-directory plan PYTHON=python$$version VENV=$(VENV)-$$version >/dev/null || exit 1; \
		else echo "Python $$version: not on this machine"; fi; \
	done

# The pins of the light install with the hashes of their files; the newest that constraints.txt allows.
UV_VERSION := 0.13.9
lock: $(VENV)/.light
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock" \
		-c constraints.txt pyproject.toml -o requirements.txt

# What the light install brings, with licences, as a CycloneDX file: sbom.cdx.json.
sbom:
	$(MAKE) --no-print-directory VENV=$(VENV)-light $(VENV)-light/.light
	test -x $(VENV)-sbom/bin/python || $(PYTHON) -m venv $(VENV)-sbom
	$(VENV)-sbom/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	$(VENV)-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--of JSON -o sbom.cdx.json $(VENV)-light/bin/python

fast: $(VENV)/.dev
	$(BIN)/pytest -m "not slow and not thorough and not long and not external"

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pictures: $(VENV)/.light
	$(BIN)/python -m benchmarks.concept_pictures

figures: $(VENV)/.light
	$(BIN)/python -m benchmarks.paper_figures

# Every published table, predicted: errors in validation-out/, the page docs/accuracy.md, the widths of intervals.
PUBLISHED := benchmarks/published
VALIDATE = $(BIN)/python -m benchmarks.validation --rl $(PUBLISHED)/rl_steps.csv \
	--training $(PUBLISHED)/training.csv --generation $(PUBLISHED)/generation.csv --paper $(PUBLISHED)

validate: $(VENV)/.dev
	$(VALIDATE) --out validation-out

accuracy: $(VENV)/.dev
	$(VALIDATE) --docs docs/accuracy.md --committed benchmarks/validation/committed.csv

# What each fitted constant is worth: errors with it and with its term left out; some minutes.
ablation: $(VENV)/.dev
	$(BIN)/python -m benchmarks.validation.ablation --out benchmarks/validation/ablation.csv

# The page of cluster sizes, searched anew: a hundred frontiers, about 15 minutes on two cores.
sizing: $(VENV)/.light
	$(BIN)/python -m benchmarks.sizing --docs docs/sizing.md

calibrate: $(VENV)/.dev
	$(VALIDATE) --calibrate

# Would the tests see it? Each fitted constant a fifth up and down against the gate on accuracy, and lines of prices,
# bounds and advantages changed one by one (what lived: `mutmut results`); an hour each.
mutation: $(VENV)/.dev
	$(BIN)/python -m benchmarks.validation.moved_constants --out mutants/moved_constants.csv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check mutmut==3.8.1
	$(BIN)/python -m mutmut run

# Every example planned, simulated, exported, imported again and reported: a minute or two.
round-trip: $(VENV)/.light
	$(BIN)/python -m benchmarks.examples_round_trip

# Measure this machine, then the shipped runs and placements against it: some minutes, on an otherwise idle machine.
loop: $(VENV)/.dev
	$(BIN)/python -m benchmarks.loop --out loop-out

# pip compiles one file after another, tests of packages too, and not what it links to.
ROOMS := executor hybridmap mapper profiles simulator
PACKAGES = $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
COMPILE = $(BIN)/python -m compileall -q -j 0 $(ROOMS)
$(VENV)/.light: pyproject.toml requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -e .
	$(COMPILE) && { $(BIN)/python -m compileall -qq -j 0 -x "/tests?/" $(PACKAGES) || true; }  # some hold templates, no Python
	touch $@

# Everything by its pin, engines included, without the resolver: requirements-test.txt says why. uv takes a seventh of
# pip's CPU seconds for it; it reads no settings of pip (where packages come from), so that it is told them, and where
# it fails two pips unpack at a time, since no part of the list needs another. Of its 400 MB of Python a quarter is ever
# imported, and compiled then.
PIP_SAYS = $(BIN)/python -m pip config get
$(VENV)/.dev: pyproject.toml requirements-test.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@find_links="$${PIP_FIND_LINKS-$$($(PIP_SAYS) global.find-links 2>/dev/null)}"; \
	index="$${PIP_INDEX_URL-$$($(PIP_SAYS) global.index-url 2>/dev/null)}"; \
	more="$${PIP_EXTRA_INDEX_URL-$$($(PIP_SAYS) global.extra-index-url 2>/dev/null)}"; \
	cert="$${PIP_CERT-$$($(PIP_SAYS) global.cert 2>/dev/null)}"; \
	test -z "$$find_links" || export UV_FIND_LINKS="$$(echo $$find_links | tr " " ,)"; \
	test -z "$$index" || export UV_DEFAULT_INDEX="$$index"; \
	test -z "$$more" || export UV_EXTRA_INDEX_URL="$$more"; \
	test -z "$$cert" || export SSL_CERT_FILE="$$cert"; \
	{ $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile uv==$(UV_VERSION) \
		&& $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --index-strategy unsafe-best-match \
			-r requirements-test.txt; } \
		|| sed "/^#/d" requirements-test.txt \
			| xargs -P 2 -n 26 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -e .
	$(COMPILE)
	touch $(VENV)/.light $@

clean:
	rm -rf $(VENV) $(VENV)-* sbom.cdx.json mutants site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
