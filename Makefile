# SPDX-License-Identifier: Apache-2.0
# `make` lists the words. Each word does all the set-up it needs: a virtual environment, pinned
# packages, a build. Needed beforehand: python3 (3.11 or newer) with venv, and g++.

PYTHON ?= python3
# Where the environment lies. VENV=none: use PYTHON as it is, install nothing (no network), and
# build in build/plain; it then needs numpy, cmake, ninja, pytest, pytest-timeout and hypothesis.
VENV ?= .venv

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
SOURCES := CMakeLists.txt $(addprefix src/nativeops/,glue.py signature.py declare.py devices/flags.txt) \
  $(shell find src -name '*.h' -o -name '*.cpp' -o -path '*/ops/*.py' ! -name '*_test.py' ! -name '*_bench.py')
PIP = $(python) -m pip install -qq --no-input --disable-pip-version-check --constraint constraints.txt

ifeq ($(VENV),none)
python := build/plain/environment/bin/python
built := build/plain/.built
tests := build/plain/package tests
workers :=
rivals :=
else
python := $(VENV)/bin/python
built := $(VENV)/.built
workers := -n 2 --dist worksteal
rivals := $(VENV)/rivals/mxnet/.installed
export PATH := $(abspath $(VENV))/bin:$(PATH)
endif

# For work on one machine, which wheels are not: "90" runs on that GPU, and by PTX on later ones.
# Kernels that the machine cannot run, or has better ones for, take minutes to compile: only
# `make kernels` does.
NATIVEOPS_CUDA_ARCHS ?= 90
has = $(shell grep -m1 -o $1 /proc/cpuinfo)
levels = $(or $(NATIVEOPS_LEVELS),portable;$(if $(call has,avx512bw),avx512,avx2)$(if $(call has,amx_bf16),;amx))
cuda = $(or $(NATIVEOPS_CUDA),$(if $(shell nvidia-smi --list-gpus 2>/dev/null),auto,off))

help: ## List these words
	@echo "make WORD, where WORD is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo "Settings: PYTHON=python3  VENV=.venv (none: install nothing, build in build/plain)"
	@echo "          NATIVEOPS_CUDA=auto|on|off  TESTS='what else pytest should be told'"

setup: $(built) ## Make the environment and build the package, ready for work

# Threads of OpenMP that wait sleep: two processes of tests share the cores.
PYTEST = OMP_WAIT_POLICY=passive NATIVEOPS_EXPECT="numpy torch jax tensorflow" $(python) -m pytest $(workers) --durations=30
test: $(built) ## Run the tests that need no GPU and are quick
	$(PYTEST) -m "not cuda and not slow" $(TESTS) $(tests)

test-slow: $(built) $(rivals) ## Run the slow ones: whole trainings, installations, guides, users' ops, torch.compile
	$(PYTEST) -m "slow and not cuda" $(TESTS) $(tests)

test-versions: $(built) ## Run the tests of JAX with each version of it that we support
	$(python) tests/versions.py $(TESTS)

test-races: $(built) ## Run GPU-style kernels with real threads under ThreadSanitizer
	$(python) -m pytest -m races $(TESTS) $(tests)

# Core, bindings and kernels with checks of memory and of undefined behaviour, in a build aside, for
# an instruction set that any machine of today has. The cases of the matrix, and the tests that name
# an instruction set, run the portable kernels too. Guard pages around arrays add nothing here.
SANITIZED ?= tests/test_matrix.py build/sanitizers/package/nativeops/ops
PRELOAD = $(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libubsan.so)
test-sanitizers: $(built) ## Run the NumPy tests of the ops under Address- and UBSanitizer
	$(python) tests/aside.py build/sanitizers -DNATIVEOPS_CUDA=off \
	  -DNATIVEOPS_SANITIZE=address,undefined -DNATIVEOPS_OPTIMIZE=g '-DNATIVEOPS_LEVELS=portable;avx2'
	NATIVEOPS_ISA=avx2 LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS=detect_leaks=0 \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  build/sanitizers/environment/bin/python -m pytest $(workers) $(TESTS) \
	  -k "not torch and not jax and not tensorflow and not mistake and not stay_inside" \
	  -m "not cuda and not races and not slow" $(SANITIZED)

# The level that this machine may not have, by the names of its ops.
test-tiles: $(built) ## Run the recurrent layers on AMX tiles in software (needs AVX-512 with bf16)
	$(python) tests/aside.py build/tiles -DNATIVEOPS_CUDA=off -DNATIVEOPS_SOFT_TILES=ON \
	  '-DNATIVEOPS_LEVELS=portable;avx512;amx'
	NATIVEOPS_ISA=amx build/tiles/environment/bin/python -m pytest $(TESTS) -m "not cuda and not slow" \
	  $(addprefix build/tiles/package/nativeops/ops/,$(addsuffix _test.py,lstm native_lstm gru rnn recurrent recurrent_batch recurrent_directions recurrent_precision recurrent_two_layers))

kernels: $(built) ## Compile all kernels: for each instruction set, and for GPUs
	rm $(built)
	@$(MAKE) NATIVEOPS_LEVELS='$(or $(NATIVEOPS_LEVELS),portable;avx2;avx512;amx)' NATIVEOPS_CUDA=$(or $(NATIVEOPS_CUDA),on) $(built)

test-cuda: $(built) ## Run the tests that need an NVIDIA GPU
	@nvidia-smi --list-gpus 2>/dev/null | grep -q GPU || \
	  { echo "make test-cuda: there is no NVIDIA GPU here: nvidia-smi lists none." >&2; exit 1; }
	NATIVEOPS_EXPECT="numpy torch cuda" $(python) -m pytest -m cuda $(TESTS) $(tests)

lint: $(built) ## Check style, types and spelling
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP)
	$(VENV)/bin/codespell

format: $(built) ## Rewrite the sources in the project's style
	$(python) -m ruff check --fix-only
	$(python) -m ruff format
	$(VENV)/bin/clang-format -i $(CPP)
CPP = $(shell find src -name '*.h' -o -name '*.cpp')

golden: $(built) ## Rewrite the golden files (public names, error texts); review the difference
	$(python) -m pytest --golden tests/test_golden.py

docs: $(built) ## Write docs/reference from the declarations
	$(python) -m nativeops.document docs/reference

bench: $(built) $(rivals) ## Measure all ops against their rivals and write the report
	$(python) -m nativeops bench

rivals: $(rivals) ## Install the rivals that need an environment of their own

demo: $(built) ## Train a recogniser of handwritten lines, with a picture and a page of what it does
	$(python) -m nativeops demo --report nativeops-demo-lines.html

doctor: $(built) ## Say what works on this machine, and what to do about the rest
	$(python) -m nativeops doctor

wheel: $(built) ## Build the source archive and the wheel into dist/
	$(python) -m build --outdir dist

.PHONY: help setup test test-slow test-versions test-races test-sanitizers test-tiles kernels test-cuda \
  lint format docs bench rivals demo doctor wheel golden machine

# What only the machine's owner can install, said in one sentence.
machine:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "make: $(PYTHON) is missing: install Python 3.11 or newer, or set PYTHON=." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than Python 3.11: set PYTHON= to a newer one." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || [ "$(VENV)" = none ] || \
	  { echo "make: Python has no venv: run 'apt install python3-venv'." >&2; exit 1; }
	@command -v $(or $(CXX),g++) >/dev/null || \
	  { echo "make: there is no C++ compiler: run 'apt install g++'." >&2; exit 1; }

# The environment and the tools of the build; then the package with all that development needs.
$(VENV)/.environment: pyproject.toml constraints.txt | machine
	$(PYTHON) -m venv $(VENV)
	$(PIP) cmake jaxlib ninja numpy scikit-build-core
	@touch $@

$(VENV)/.built: $(VENV)/.environment $(SOURCES)
	CMAKE_ARGS='-DNATIVEOPS_LEVELS=$(levels)' NATIVEOPS_CUDA=$(cuda) \
	  NATIVEOPS_CUDA_ARCHS='$(NATIVEOPS_CUDA_ARCHS)' \
	  $(PIP) --no-build-isolation --editable ".[dev]"
	@touch $@

# MXNet's last release needs a NumPy that only Python 3.11 and older have: elsewhere it is left out.
$(VENV)/rivals/mxnet/.installed: | $(VENV)/.environment
	@$(PYTHON) -m venv $(@D)
	@if $(@D)/bin/python -m pip install -qq --no-input --disable-pip-version-check \
	  mxnet==1.9.1 numpy==1.23.5; then touch $@; \
	else echo "MXNet does not install here; benchmarks leave it out."; fi

build/plain/.built: $(SOURCES) | machine
	$(PYTHON) tests/aside.py build/plain '-DNATIVEOPS_LEVELS=$(levels)' -DNATIVEOPS_CUDA=$(cuda) \
	  '-DNATIVEOPS_CUDA_ARCHS=$(NATIVEOPS_CUDA_ARCHS)'
	@touch $@
