# make demo and make test do all their set-up: a virtual environment in .venv, the CPU variant in build/.
PYTHON ?= python3
BIN := .venv/bin
export LOCAL_KERNELS ?= phanerozoic/rnnt-loss=$(CURDIR)/build

.PHONY: demo test build build-cuda build-emulated mutants check-cuda device-check release-check bench docs lint format clean

demo: build
	$(BIN)/python examples/train_prompts.py

# A file's tests stay in one process: they share what takes long to build.
test: build build-emulated lint
	$(BIN)/python -m pytest tests --numprocesses auto --maxprocesses 4 --dist loadfile

build: .venv/ready
	$(BIN)/python tools/build_variant.py cpu

build-cuda: .venv/ready
	$(BIN)/python tools/build_variant.py cuda

# The CUDA kernels with the CPU for their device (tests/emulator): as quick as can be, and with every access checked.
build-emulated: .venv/ready
	$(BIN)/python tools/build_variant.py emulated
	$(BIN)/python tools/build_variant.py emulated-check

# Every seeded bug of the kernels has to be seen by the tests' emulator; `make test` tries a dozen.
mutants: build-emulated
	$(BIN)/python tests/emulator/mutants.py --all

# What the compiler makes of the kernels, for every architecture; needs nvcc, and no GPU.
check-cuda: build
	RNNT_CHECK_CAPABILITIES=all $(BIN)/python -m pytest tests/test_cuda_static.py
	$(BIN)/python tools/sass.py --markdown benchmarks/results/sass.md >/dev/null

# On a machine with a GPU: builds, tests and times the CUDA variant with the Python that is there, in eight minutes.
device-check:
	$(PYTHON) tools/device_check.py

# Whether this tree, and what is in build/, could be released; with TAG=v1.0, as that. It takes seconds and builds nothing.
release-check: .venv/ready
	$(BIN)/python tools/release_check.py $(if $(TAG),--tag $(TAG))

bench: build
	$(BIN)/python benchmarks/peers.py

# The API reference, from the docstrings; a test says if it is stale.
docs: .venv/ready
	$(BIN)/python tools/api_reference.py

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
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps nemo_toolkit==3.0.0 speechbrain==1.0.3 || echo "no NeMo, no SpeechBrain: likewise"
	touch $@
