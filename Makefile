# `make help` says what there is. Everything happens in $(VENV), which is made at first use.

PYTHON ?= python3
VENV ?= .venv
PYTEST_FLAGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-all lint clean
export PATH := $(abspath $(VENV))/bin:$(PATH)

INSTALLED := $(VENV)/.installed
FORMULA := D = relu(alpha*acc + beta*C) + residual
# Of the C++: what it is, the formula as a functor, and the visitor around it.
EXCERPT := | sed -n '1,/^$$/p; /^struct Region0 /,/^};/p; /^\/\/ The visitor/,/^using Visitor/p; $$ s/.*/.../p'

help:
	@echo "make demo    the main job on real input: a formula is checked, emitted, explained, drawn and run"
	@echo "make test    lint, then the tests that this machine can run in about ten minutes on two cores"
	@echo "make test-slow  what repeats those in depth: every kernel through nvcc, 300 random programs for 100"
	@echo "make test-all  both"
	@echo "make lint    ruff and mypy"
	@echo "make clean   remove $(VENV) and what tools left behind (not the cache of kernels: evt cache clear)"
	@echo "Variables: PYTHON=$(PYTHON), VENV=$(VENV), PYTEST_FLAGS='-k name'"

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo 'Installing evt and what its tests need into $(VENV): PyTorch is large, this takes some minutes.'
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	python -m pip install -qq --disable-pip-version-check -e '.[test]' -c constraints.txt
	@touch $@

# $(call step,What happens,the command,what is done to its output)
define step
	@printf '\n# %s\n$$ %s\n' '$(1)' '$(subst ','\'',$(2))'
	@$(2) $(3)
endef

demo: $(INSTALLED)
	$(call step,Are these programs right? Mistakes would be shown in the text.,evt check samples/*.evt)
	$(call step,A formula becomes CUTLASS 3.x C++ for Hopper. This is an excerpt; -o FILE writes all of it.,evt emit '$(FORMULA)' --op gemm --arch sm90 --dtype f16,$(EXCERPT))
	$(call step,The same for Ampere: CUTLASS 2.x.,evt emit '$(FORMULA)' --op gemm --arch sm80 --dtype f16,$(EXCERPT))
	$(call step,Which kernel that is and why.,evt explain '$(FORMULA)' --arch sm90 --dtype f16)
	$(call step,The graph that it is made from.,evt graph '$(FORMULA)' --format text)
	$(call step,What is missing on this machine to compile and run the kernel?,evt doctor,|| true)
	$(call step,The same text is the epilogue of a convolution. Which kernel that is on Ada and why.,evt explain samples/conv_relu_add.evt --arch sm89 --padding 1)
	$(call step,Run it on random numbers: on the GPU or else with the reference on the CPU.,evt run '$(FORMULA)' --m 1000 --n 768 --k 512 --dtype f16)

PYTEST := pytest -n auto --maxprocesses 8

# A file is one worker's work. In the order of the folders the long files, those that compile, do not come last.
test: lint
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m 'not slow' $(PYTEST_FLAGS)

test-slow: $(INSTALLED)
	$(PYTEST) --dist loadgroup -m slow $(PYTEST_FLAGS)

test-all: test test-slow

lint: $(INSTALLED)
	ruff check
	ruff format --check
	mypy

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
