# One command per need. Everything runs in .venv, which the first command makes.
PYTHON ?= python3
DEVICE ?= auto
MODEL  ?= tiny-qwen3-vl
PORT   ?= 30000
FLAGS  ?= --encoder-only
BIN    := .venv/bin
# One OpenMP thread per worker: two workers do not fight over the cores, and sums repeat.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help setup serve test check format test-gpu test-load test-slow bench bench-report size clean

help:           ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */: /'

setup:          ## make or refresh .venv (quick when nothing changed); DEVICE=auto|cpu|cuda
	@$(PYTHON) scripts/setup_env.py --device $(DEVICE)

serve: setup    ## start the encoder server on a shipped tiny model; FLAGS= chats with it
	@$(BIN)/ostinato serve --model $(MODEL) --device $(DEVICE) --port $(PORT) $(FLAGS)

test: setup     ## tests that need neither a GPU nor much time
	$(PYTEST) -n 2 -m 'not gpu and not slow and not load'

check: setup    ## lint, format, types, import rules; every kernel compiled for every card
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/compile_kernels.py

format: setup   ## rewrite the files as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-gpu: setup ## tests that need an NVIDIA GPU
	$(PYTEST) -m gpu

test-load: setup ## servers and memory under load
	$(PYTEST) -m load

test-slow: setup ## tests that take more than ten seconds each
	$(PYTEST) -m 'slow and not gpu'

bench: setup    ## run every benchmark in bench/
	@$(BIN)/python scripts/benchmarks.py run

bench-report: setup ## list the results in bench/results/, draw the pictures in docs/
	@$(BIN)/python scripts/benchmarks.py report

size:           ## lines of Python per folder
	@$(PYTHON) scripts/size.py

clean:          ## remove what the commands above made
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
