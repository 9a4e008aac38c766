# `make help` lists the targets and the variables.

PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13
CONSTRAINTS ?= constraints.txt
TORCH_CONSTRAINT ?=
JOBS ?= 2
SLOW_PART ?=
SETTING ?= default

VENV := .venv
BIN := $(VENV)/bin
SOURCES := src tests docs/site.py $(wildcard benchmarks)

# Settings whose matrix products differ in their last bits: no test may depend on them. By default each test worker has
# one computing thread, so that the workers do not fight over the cores, and tests/conftest.py chooses the library. Of
# two threads each, those that wait give their core away (PASSIVE): spinning on two cores makes trainings five times slower.
SETTINGS := default onednn-2 torch-1 torch-2 avx2
environment_default := OMP_NUM_THREADS=1
environment_onednn-2 := OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=2 BOTHWAYS_MATRIX_PRODUCT=onednn
environment_torch-1 := OMP_NUM_THREADS=1 BOTHWAYS_MATRIX_PRODUCT=torch
environment_torch-2 := OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=2 BOTHWAYS_MATRIX_PRODUCT=torch
environment_avx2 := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
ifeq ($(filter $(SETTING),$(SETTINGS)),)
$(error expected SETTING to be one of $(SETTINGS), got '$(SETTING)')
endif
# A file's tests go to one worker, so that what they share is made once; tests/conftest.py orders the files.
PYTEST := $(environment_$(SETTING)) $(BIN)/python -m pytest tests -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-pythons mutants ceilings check docs bench gpu format clean

help:
	@printf '%s\n' \
	  "make demo       install what the demo needs into $(VENV) and run it" \
	  "make test       the everyday tests, without the slow ones and those for a GPU" \
	  "make test-all   every test; those for a GPU are skipped where there is none" \
	  "make test-pythons  make test with each Python of PYTHONS that is here" \
	  "make mutants    change a sample of the code, one thing at a time, and see whether a test notices; 20 minutes" \
	  "make ceilings   how long the paths through the code are, how large its pieces: today's figures and the goals" \
	  "make check      ruff (rules and layout) and mypy" \
	  "make docs       the site, into site/: open site/index.html" \
  "make bench      the benchmarks" \
	  "make gpu        on a machine with a CUDA device: its tests and its benchmark, in the Python that runs them (PYTHON)" \
	  "make format     lay the code out and repair what ruff can repair" \
	  "make clean      remove $(VENV), caches and build outputs; runs and reports stay" \
	  "" \
	  "Variables, with what they are now:" \
	  "  PYTHON=$(PYTHON)" \
	  "      the interpreter that $(VENV) is made from, 3.11 or newer" \
	  "  PYTHONS=$(PYTHONS)" \
	  "      names or paths of those that make test-pythons takes" \
	  "  CONSTRAINTS=$(CONSTRAINTS)" \
	  "      pinned versions; with CONSTRAINTS= pip chooses" \
	  "  TORCH_CONSTRAINT=$(TORCH_CONSTRAINT)" \
	  "      another torch than the pinned one, for instance to use a GPU:" \
	  "      PIP_EXTRA_INDEX_URL=<index of the build> make demo TORCH_CONSTRAINT='torch==2.13.0+cu130'" \
	  "  JOBS=$(JOBS)" \
	  "      test workers" \
	  "  SLOW_PART=$(SLOW_PART)" \
	  "      make test also runs this tenth of the slow tests, 0 to 9" \
	  "  SETTING=$(SETTING)" \
	  "      library and threads of the tests' matrix products: $(SETTINGS)" \
	  "PYTHON and the constraints count when $(VENV) is made: make clean, then make again, to change them."

demo: $(VENV)/.demo
	$(BIN)/bothways demo

test: $(VENV)/.dev
	$(PYTEST) $(if $(SLOW_PART),-m 'not gpu' --slow-part=$(SLOW_PART),-m 'not slow and not gpu')

test-all: $(VENV)/.dev
	$(PYTEST)

# An environment of its own for each interpreter that is here.
test-pythons:
	@for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
	    { echo "$$python is not here"; continue; }; \
	  echo "Python $$version"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=$(VENV)-python$$version || exit 1; done

mutants: $(VENV)/.dev
	JOBS=$(JOBS) $(BIN)/python tests/mutants.py $(AREAS)

ceilings: $(VENV)/.dev
	$(BIN)/python tests/test_ceilings.py

check: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# NO_MKDOCS_2_WARNING: a notice of its theme about another program.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

# A GPU's machine may have a torch of its own and no way to install another: nothing is installed here, and only files
# with tests for a GPU are collected, which need fewer packages than the others.
gpu:
	PYTHONPATH=src $(PYTHON) -m pytest $(shell grep -rl --include='test_*.py' 'mark\.gpu' tests) -m gpu -q -n $(JOBS) -p no:cacheprovider
	PYTHONPATH=src $(PYTHON) -m benchmarks gpu --threads $(JOBS)

clean:
	rm -rf $(VENV) $(VENV)-python3.* build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- installation: each stamp says that its extra is installed as pyproject.toml and the constraints now stand ---

install = $(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt -e '.[$(1)]'

$(VENV)/.demo: pyproject.toml $(CONSTRAINTS) | $(VENV)/constraints.txt
	@echo "Installing the demo into $(VENV) ..."
	$(call install,demo)
	@touch $@

# The dev and bench extras hold all that the demo needs.
$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(VENV)/constraints.txt
	@echo "Installing the development tools into $(VENV) ..."
	$(call install,dev)
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: pyproject.toml $(CONSTRAINTS) | $(VENV)/constraints.txt
	@echo "Installing the benchmarks' tools into $(VENV) ..."
	$(call install,bench)
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml $(CONSTRAINTS) | $(VENV)/constraints.txt
	@echo "Installing the site's tools into $(VENV) ..."
	$(call install,docs)
	@touch $@

$(VENV)/constraints.txt: $(CONSTRAINTS) | $(BIN)/pip
	@{ $(if $(CONSTRAINTS),$(if $(TORCH_CONSTRAINT),grep -v '^torch==',cat) $(CONSTRAINTS),true); \
	   echo "$(TORCH_CONSTRAINT)"; } > $@

# pip is the last thing that venv installs: where it is, the environment is whole.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "bothways needs Python 3.11 or newer, but PYTHON=$(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there)." \
	       "Say which one to use, for instance: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) could not make $(VENV). On Debian and Ubuntu, install python3-venv first." >&2; exit 1; }
