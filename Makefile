# Each target does all of its own set-up, in a private Python environment (.venv). `make help` lists them.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help chat test bench lint cuda clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: all of them at once takes 10 s longer.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# As in pyproject.toml, and the programs that the build runs.
BUILD_TOOLS := 'scikit-build-core>=1.1' 'nanobind>=2.9' 'cmake>=3.26' ninja

# They read what nvcc made; as in pyproject.toml.
CUDA_TOOLS := 'nvidia-cuda-cuobjdump==13.2.*' 'nvidia-cuda-nvdisasm==13.2.*'

# MODEL and PROMPT count when they are given to make, not when they happen to be in the environment. They reach the
# recipe through the environment and unexpanded: quotes and dollar signs mean nothing to make or the shell.
ifneq ($(origin MODEL),command line)
MODEL :=
endif
ifneq ($(origin PROMPT),command line)
PROMPT :=
endif
override MODEL := $(value MODEL)
override PROMPT := $(value PROMPT)
export MODEL PROMPT

CXX_SOURCES := $(shell find cpp python/src -name '*.cpp' -o -name '*.h')
CUDA_SOURCES := $(shell find cuda tests/cuda -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cmake')
CXX_TO_FORMAT := $(shell find cpp cuda python/src tests tools -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

help: ## this list
	@echo 'make TARGET, where TARGET is'
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' $(MAKEFILE_LIST)
	@echo 'The first one that needs the engine compiles it: about 2 minutes on 2 cores. PYTHON=... chooses a Python.'

# At a terminal the program gets a process group of its own, so that Ctrl-C stops an answer and not make as well; Ctrl-Z
# is off there, for make would not be stopped with it.
chat: $(VENV)/built ## talk to a model: make chat [MODEL=file.gguf] [PROMPT="answer this and exit"]
	@set -- chat; \
	if [ -n "$$PROMPT" ]; then set -- "$$@" "--prompt=$$PROMPT"; fi; \
	if [ -n "$$MODEL" ]; then set -- "$$@" -- "$$MODEL"; fi; \
	if [ -t 0 ]; then set -m; fi; \
	(trap '' TSTP; exec $(BIN)/expertree "$$@")

test: $(VENV)/dev ## the tests, a few minutes
	EXPERTREE_REQUIRE_CUDA_TESTS=1 $(BIN)/python -m pytest -q
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/check_symbols.py "$$(echo build/$$($(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*)"

bench: $(VENV)/dev ## speed of the kernels and of a small model
	$(BIN)/python tools/bench_kernels.py
	$(BIN)/expertree bench

lint: $(VENV)/dev ## style, types, formatting, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_TO_FORMAT)
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/check_kernels.py

cuda: $(VENV)/built ## compile the CUDA backend for all targets and check it; needs nvcc, no GPU
	@command -v nvcc >/dev/null || { echo 'skipped: the CUDA build, for there is no nvcc'; exit 0; }; \
	$(INSTALL) $(CUDA_TOOLS) || echo 'no cuobjdump: instructions are not looked at'; \
	PATH="$(BIN):$$PATH" $(BIN)/python tools/check_cuda_build.py

clean: ## remove .venv and everything built; fetched models stay (expertree models remove NAME)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Each file below says that a step was done; a step that fails leaves none.

$(VENV)/made:
	@PYTHON='$(PYTHON)' sh tools/check_prerequisites.sh
	@echo 'Making a private Python environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/build-tools: $(VENV)/made
	@echo 'Installing the build tools (nanobind, cmake, ninja)'
	@$(INSTALL) $(BUILD_TOOLS) || { \
	echo 'pip could not get them: check the network and pip'"'"'s settings ($(BIN)/python -m pip config list)' >&2; exit 1; }
	@touch $@

# For this machine alone, until somebody tests or develops here.
ifeq ($(wildcard $(VENV)/dev),)
$(VENV)/built: $(VENV)/build-tools $(CXX_SOURCES) CMakeLists.txt pyproject.toml
	@echo 'Compiling the engine and installing expertree: about 2 minutes on 2 cores the first time'
	@$(INSTALL) --no-build-isolation --config-settings=cmake.define.EXPERTREE_NATIVE=ON --editable .
	@touch $@
else
$(VENV)/built: $(VENV)/dev
	@touch $@
endif

$(VENV)/dev: $(VENV)/build-tools $(CXX_SOURCES) $(CUDA_SOURCES) CMakeLists.txt pyproject.toml
	@echo 'Compiling the engine with what tests need: about 4 minutes on 2 cores the first time'
	@$(INSTALL) --no-build-isolation --config-settings=cmake.define.EXPERTREE_NATIVE=OFF \
	--config-settings=cmake.define.EXPERTREE_CUDA_EMULATED=ON --editable '.[dev]'
	@touch $@
