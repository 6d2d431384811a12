# make demo and make test do all their set-up: a virtual environment in .venv, the CPU variant in build/.
PYTHON ?= python3
BIN := .venv/bin
export LOCAL_KERNELS ?= phanerozoic/rnnt-loss=$(CURDIR)/build

.PHONY: demo test build build-cuda bench lint format clean

demo: build
	$(BIN)/python examples/train_prompts.py

test: build lint
	$(BIN)/python -m pytest tests

build: .venv/ready
	$(BIN)/python tools/build_variant.py cpu

build-cuda: .venv/ready
	$(BIN)/python tools/build_variant.py cuda

bench: build
	$(BIN)/python benchmarks/peers.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

clean:
	rm -rf build .venv

.venv/ready: requirements-dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps torchaudio==2.11.0 || echo "no torchaudio: comparisons with it will be skipped"
	touch $@
