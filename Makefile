# Elsewise: `make run` and `make test` are the two commands; the others are parts of them or extras (`make help` lists them).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
TORCH := torch==2.13.0
# What Qt and its platform plugins are linked to. "a|b": the package's name on older and on newer systems.
QT_PACKAGES := libglib2.0-0|libglib2.0-0t64 libegl1 libgl1 libxkbcommon0 libxkbcommon-x11-0 libdbus-1-3 libfontconfig1 libxcb-cursor0 libxcb-icccm4 \
  libxcb-image0 libxcb-keysyms1 libxcb-randr0 libxcb-render-util0 libxcb-shape0 libxcb-xinerama0 libxcb-xkb1

export HF_HUB_DISABLE_TELEMETRY := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# With it, each of the hundreds of child processes of the tests would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

# One worker per processor, four at most (each may have engines of its own); the one that is done first takes over from the others.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

.PHONY: run help setup model lint test test-fast test-slow test-vllm test-llama reliability bench bench-quick package package-test screenshots sample system clean

run: setup  ## sets everything up and opens the window (what `make` alone does)
	$(BIN)/elsewise

help:  ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

# Compiles the byte code, so that the first window is as fast as the second, also where Python may not write any.
setup: $(VENV)/.ready model  ## makes .venv from the lock, with the default model
	@$(BIN)/python -m compileall -q app resources runtime storage ui

# TORCH="..." on the command line, where it differs from the last one, replaces torch; else one of another version is replaced.
ifeq ($(origin TORCH),command line)
ifneq ($(TORCH),$(shell cat $(VENV)/.torch 2>/dev/null))
.PHONY: $(VENV)/.ready
endif
endif
$(VENV)/.ready: requirements.lock pyproject.toml packaging/setup.sh packaging/system.sh
	PYTHON="$(PYTHON)" UV_VERSION="$(UV_VERSION)" TORCH="$(TORCH)" TORCH_ORIGIN="$(origin TORCH)" \
	  QT_PACKAGES="$(QT_PACKAGES)" sh packaging/setup.sh "$(VENV)"
	touch $@

model: $(VENV)/.ready  ## fetches and imports the default model, where it is missing
	@$(BIN)/python -m runtime.shelf.embedded

lint: $(VENV)/.ready  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Under six minutes on two cores.
test: setup lint test-fast  ## lint, and every test that is not marked slow

test-fast: setup  ## the tests alone; PYTEST_ARGS=... adds options of pytest
	TMPDIR="$$(sh packaging/scratch.sh)" OMP_NUM_THREADS=1 $(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: setup  ## SmolLM2, fault sweeps, further cases of the fast ones, the window on a virtual screen
	@-test "$$(id -u)" != 0 || PYTHON="$(PYTHON)" QT_PACKAGES="$(QT_PACKAGES)" EXTRA_PACKAGES="xvfb openbox xdotool" sh packaging/system.sh
	OMP_NUM_THREADS=1 $(PYTEST) -m slow $(PYTEST_ARGS)

test-vllm: setup  ## the tests against a real vLLM, which it fetches into an environment of its own (Linux, 3.4 GB)
	PYTHON="$(PYTHON)" sh packaging/vllm.sh .cache/vllm
	ELSEWISE_VLLM=.cache/vllm OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow tests/runtime/remote/test_vllm.py

test-llama: setup  ## the same against llama.cpp's server (0.2 GB)
	PYTHON="$(PYTHON)" sh packaging/llama_cpp.sh .cache/llama_cpp
	ELSEWISE_LLAMA_CPP=.cache/llama_cpp OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow tests/runtime/remote/test_llama_cpp.py

reliability: setup  ## kills, bad disks, damage, mutants: one table (docs/reliability.md); RELIABILITY_ARGS="--short --only disk" adds options
	TMPDIR="$$(sh packaging/scratch.sh)" $(BIN)/python -m tests.reliability $(RELIABILITY_ARGS)

bench: setup  ## the benchmark; BENCH_ARGS="--quick --only W5" adds options of `elsewise bench`
	$(BIN)/elsewise bench $(BENCH_ARGS)

bench-quick: setup  ## the same as BENCH_ARGS=--quick
	$(BIN)/elsewise bench --quick

package: setup  ## builds an app of its own: dist/elsewise_VERSION_amd64.deb and .tar.gz on Linux, dist/Elsewise.app on macOS
	$(BIN)/python -m pip install --quiet -r packaging/requirements-package.txt
	QT_PACKAGES="$(QT_PACKAGES)" $(BIN)/python -P packaging/package.py

package-test: setup  ## tries what `make package` built, without any Python in reach (Linux, as root)
	sh packaging/try_package.sh dist/elsewise_*.deb

screenshots: setup  ## draws the pictures in docs; SCREENSHOTS_ARGS=--all: every scene, contrast, pseudo-locale and right-to-left too
	@PYTHON="$(PYTHON)" QT_PACKAGES="$(QT_PACKAGES)" EXTRA_PACKAGES="fonts-noto-cjk fonts-noto-color-emoji" sh packaging/system.sh
	QT_QPA_PLATFORM=offscreen $(BIN)/python -m tests.tools.screenshots docs $(SCREENSHOTS_ARGS)
	$(BIN)/python -m tests.tools.notebooks docs/notebooks

sample: setup  ## records resources/sample from SmolLM2 again
	$(BIN)/python -m tests.tools.record_sample

system:  ## names the missing system libraries, or installs them as root on Debian
	@PYTHON="$(PYTHON)" QT_PACKAGES="$(QT_PACKAGES)" sh packaging/system.sh

clean:  ## removes .venv and what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .cache
