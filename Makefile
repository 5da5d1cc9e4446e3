# `make help` lists the targets. All of them use $(VENV), which the first one creates.

PYTHON ?= python3
VENV ?= .venv
PYTEST_FLAGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv demo test suite test-slow test-all docs playground lint house clean
export PATH := $(abspath $(VENV))/bin:$(PATH)
# Tests start hundreds of processes, which take twice the time without bytecode.
unexport PYTHONDONTWRITEBYTECODE

INSTALLED := $(VENV)/.installed
FORMULA := D = relu(alpha*acc + beta*C) + residual
# Excerpt of the checks: one sample.
ONE_SAMPLE := | sed -n '/conv_relu_add/,/out /p; $$ s/.*/.../p'
# Excerpt of the C++: the heading, the formula's functor, and the visitor that calls it.
EXCERPT := | sed -n '1,/^$$/p; /^struct Region0 /,/^};/p; /^\/\/ The visitor/,/^using Visitor/p; $$ s/.*/.../p'

help:
	@echo "make demo       check, emit, explain, draw and run a formula"
	@echo "make test       run ruff, mypy and the tests that this machine can run (8 to 13 minutes on 2 cores)"
	@echo "make test-slow  run the exhaustive tests: every kernel through nvcc, 300 random programs instead of 25"
	@echo "make test-all   run both"
	@echo "make docs       build the manual into build/docs/html, with the playground if that was built"
	@echo "make playground  build the playground, a page that runs evt in the browser, into build/playground (needs npm)"
	@echo "make lint       run ruff and mypy"
	@echo "make house      check the house rules: imports, lengths, words, links, guides"
	@echo "make clean      remove $(VENV), build outputs and tool caches (evt cache clear removes compiled kernels)"
	@echo "Variables: PYTHON=$(PYTHON), VENV=$(VENV), PYTEST_FLAGS='-k name'"

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo 'Installing evt and its development tools into $(VENV). PyTorch is large: this takes some minutes.'
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	python -m pip install -qq --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

# $(call step,heading,command,filter of its output)
define step
	@printf '\n# %s\n$$ %s\n' '$(1)' '$(subst ','\'',$(2))'
	@$(2) $(3)
endef

demo: $(INSTALLED)
	$(call step,Check the samples. A mistake would be shown in the text of its program.,evt check samples/*.evt,$(ONE_SAMPLE))
	$(call step,Emit CUTLASS 3.x C++ for Hopper. This is an excerpt; -o FILE writes it all.,evt emit '$(FORMULA)' --op gemm --arch sm90 --dtype f16,$(EXCERPT))
	$(call step,Emit CUTLASS 2.x C++ for Ampere.,evt emit '$(FORMULA)' --op gemm --arch sm80 --dtype f16,$(EXCERPT))
	$(call step,Explain the choice of the kernel.,evt explain '$(FORMULA)' --arch sm90 --dtype f16)
	$(call step,Draw the graph of the formula.,evt graph '$(FORMULA)' --format text)
	$(call step,List what this machine lacks to compile and run the kernel.,evt doctor,|| true)
	$(call step,Explain the kernel of a convolution with such an epilogue on Ada.,evt explain samples/conv_relu_add.evt --arch sm89 --padding 1)
	$(call step,Run the formula on random numbers. Without a GPU the reference computes it on the CPU.,evt run '$(FORMULA)' --m 1000 --n 768 --k 512 --dtype f16)

PYTEST := pytest -n auto --maxprocesses 8

# ruff and mypy run beside the tests.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory --jobs=2 lint suite

# One worker runs a whole file. In the order of tests/conftest.py, the long files, which compile, do not come last.
suite: $(INSTALLED)
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m 'not slow' $(PYTEST_FLAGS)

test-slow: $(INSTALLED)
	$(PYTEST) --dist loadgroup -m slow $(PYTEST_FLAGS)

test-all: test test-slow

$(VENV)/.docs: $(INSTALLED)
	python -m pip install -qq --disable-pip-version-check -e '.[docs]' -c constraints.txt
	@touch $@

docs: $(VENV)/.docs
	python -m docs.builder build/docs

playground: $(INSTALLED)
	python -m playground.build build/playground

lint: $(INSTALLED)
	ruff check
	ruff format --check
	mypy

house: $(INSTALLED)
	pytest -q -m "not slow" tests/house --ignore=tests/house/test_manual.py --ignore=tests/house/test_demo.py --ignore=tests/house/test_wheel.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
