# Every target sets up what it needs in $(VENV); a second run finds it there and downloads nothing.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
REPLAY_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?=

PY := $(VENV)/bin/python
SETUP := $(PYTHON) scripts/setup.py --venv $(VENV)

.DEFAULT_GOAL := help
.PHONY: help demo test prove replay lint docs publish test-versions test-wheel seeds seeds-check prove-seeds
.PHONY: bench-compile bench-dispatch bench-seeds calibrate time-model report fuzz-gpu clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## kernels on CPU tensors and what the compiler chose for them, no GPU needed
	@$(SETUP) run
	@$(PY) examples/demo.py

test: ## the deterministic sample of the test suite
	@$(SETUP) test
	@$(PY) -m pytest -q -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

prove: ## everything: all examples, configs and targets
	@$(SETUP) test
	@HELION_PROVE=1 $(PY) -m pytest -q -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

replay: ## compare generated code of examples and config keys with what is kept (REPLAY_ARGS=--update takes it)
	@$(SETUP) run
	@$(PY) scripts/replay.py $(REPLAY_ARGS)

lint: ## ruff check, ruff format --check, mypy
	@$(SETUP) lint
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

docs: ## the documentation as a site in build/site, warnings are errors
	@$(SETUP) docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet

publish: docs ## the site next to those of other versions, in build/sites
	@$(PY) scripts/publish.py build/sites

test-versions: ## compile every example under the oldest and the newest supported Triton
	@$(SETUP) run
	@$(PY) scripts/test_versions.py

test-wheel: ## the wheel in a clean environment of each Python of this machine
	@$(SETUP) run
	@$(PY) scripts/test_wheel.py

seeds: ## the table of seeds over examples, epilogues and reductions: test/seeds/seeds.tsv
	@$(SETUP) run
	@$(PY) scripts/seeds.py

seeds-check: ## whether that table is what the heuristics choose
	@$(SETUP) run
	@$(PY) scripts/seeds.py --check

prove-seeds: ## compile every seed of the table, and of unseen kernels for nine GPUs, offline: test/seeds/{compiled,unseen}.tsv
	@$(SETUP) run
	@$(PY) scripts/prove_seeds.py
	@$(PY) scripts/prove_unseen.py

bench-compile: ## how long import, bind and code generation take
	@$(SETUP) run
	@$(PY) benchmarks/compile_time.py $(BENCH_ARGS)

bench-dispatch: ## what a call costs before the kernel runs
	@$(SETUP) run
	@$(PY) benchmarks/dispatch.py $(BENCH_ARGS)

bench-seeds: ## kernel times on a GPU beside torch.compile and eager (BENCH_ARGS=--help)
	@$(SETUP) run
	@$(PY) benchmarks/seeds.py $(BENCH_ARGS)

calibrate: ## what the model of time takes from a GPU: benchmarks/results/calibration/<device>.json (BENCH_ARGS=--dry)
	@$(SETUP) run
	@$(PY) benchmarks/calibrate.py $(BENCH_ARGS)

time-model: ## predicted times against the kept sweep, held out by kernel, no GPU needed (BENCH_ARGS=--fit)
	@$(SETUP) fit
	@$(PY) benchmarks/time_model.py $(BENCH_ARGS)

report: ## docs/performance.md and its plots from benchmarks/results
	@$(SETUP) plot
	@$(PY) benchmarks/report.py

fuzz-gpu: ## random kernels under random configs against eager fp64 on a GPU, 8 minutes (FUZZ_ARGS=--help)
	@$(SETUP) run
	@$(PY) -m fuzz $(FUZZ_ARGS)

clean: ## remove the environments, caches and build products
	@$(PYTHON) scripts/setup.py --venv $(VENV) remove
	@rm -rf $(VENV).lock .venv-triton-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name .git -prune -o -name '.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +
