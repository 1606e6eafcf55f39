# The doors for people. The work is done by tools/setup (each script quick when done before), CMake and tools/check.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := release
.PHONY: soak check-serve check-serve-threads wheel engines check-engines bench-h200 check-gpu release setup demo check check-fast format-check abi-update figures install clean distclean help

JOBS ?= $(shell nproc)
MODEL := build/models/SmolLM2-135M-Instruct.Q4_1.gguf
CONFIGURE := cmake -S . -G Ninja

# Set-up: system packages, private Python, ggml and libllama. Root is needed only while a package is missing.
setup:
	@tools/setup/packages.sh
	@tools/setup/venv.sh
	@tools/setup/llama.sh

# The program and the library in build/release.
release: setup
	@$(CONFIGURE) -B build/release -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Release -DOCTAVO_ENGINE=ON >build/configure.log || { cat build/configure.log; exit 1; }
	@cmake --build build/release -j $(JOBS)

# The main job on the default model, judged on its own chronicle and on a text of Debian's bible-kjv, with the file's weights and with F32
# weights. The report goes to the screen, to build/demo/report.md and to build/demo/report.json.
demo: release
	@tools/setup/models.sh smollm2
	@mkdir -p build/demo
	@bible -f ezek40:1-ezek42:20 | sed 's/^[^ ]* //' >build/demo/ezekiel.txt
	@build/release/octavo compare -m $(MODEL) --f32-weights -f built-in -f build/demo/ezekiel.txt --save build/demo/report.md --save build/demo/report.json

# What 8 bits do to the default model, in minutes (doc/EVAL.md). The report goes to the screen and, as a page to look at, to build/demo/eval.html.
eval: release
	@tools/setup/models.sh smollm2
	@tools/setup/tasks.sh
	@mkdir -p build/demo
	@build/release/octavo eval -m $(MODEL) --quick --save build/demo/eval.md --save build/demo/eval.html --save build/demo/eval.json

# Everything, the set-up included. The last line counts what passed, failed and was skipped. ENGINES=1: the suites of check-engines, too.
check:
	@python3 tools/check/check.py $(if $(ENGINES),--engines)

# The release build and the fast tests.
check-fast:
	@python3 tools/check/check.py --fast

# The Python package as a wheel in build/wheel, with the code for the GPUs whose compilers are here. PYTHON=python3.12 or later makes it for all later ones.
PYTHON ?= build/venv/bin/python
wheel: release
	@cmake --build build/release -j $(JOBS) --target device_code
	@"$(PYTHON)" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel \
	    $$(ls build/release/device/octavo_* >/dev/null 2>&1 && echo "-Ccmake.define.OCTAVO_DEVICE_FROM=$(CURDIR)/build/release/device") .
	@ls build/wheel/*.whl

# PyTorch's operators and the plug-ins for transformers, vLLM and SGLang, on the real engines: on build/engines and build/sglang, which are made when first needed (minutes, 7 GB),
# or on a PYTHON that has the wheel, pytest, ml-dtypes and the engines of SUITES. `make check ENGINES=1` runs them behind its own tests (doc/PYTHON.md).
SUITES ?= vllm sglang transformers torch
check-engines: $(if $(filter file,$(origin PYTHON)),engines)
	@python3 tools/check/engines.py $(if $(filter file,$(origin PYTHON)),,--python "$(PYTHON)") $(SUITES)

# build/engines and build/sglang with the package of this tree, and the models of their tests.
engines: setup wheel
	@tools/setup/engines.sh
	@tools/setup/models.sh smollm2 gemma3
	@build/engines/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$$(ls -t build/wheel/*.whl | head -n1)"

# The tests over this machine's own NVIDIA GPU; tools/check/gpu.sh --sanitize adds compute-sanitizer.
check-gpu:
	@tools/check/gpu.sh

# Twenty minutes of use of the server, in pools that are always full; `make check` has three quieter ones. MINUTES=120 makes it longer.
MINUTES ?= 20
soak: release
	@build/venv/bin/python -B tests/serve/soak.py --octavo build/release/octavo --minutes $(MINUTES) --pause 0 --clients 20 --full 50

# OpenAI's own client and schemathesis against the server, with more requests than `make check` makes.
EXAMPLES ?= 200
check-serve: release
	@tools/setup/clients.sh
	@OCTAVO_SCHEMA_EXAMPLES=$(EXAMPLES) ctest --test-dir build/release --output-on-failure -R '^serve_(openai|schema)$$'

# The server and its tests under the thread sanitizer, and a minute of the soak; ggml and libmicrohttpd are as they are. Minutes, of which `make check` has two tests.
check-serve-threads:
	@$(CONFIGURE) -B build/serve-threads -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOCTAVO_SANITIZE=thread -DOCTAVO_TESTS=serve
	@cmake --build build/serve-threads -j$(JOBS)
	@ctest --test-dir build/serve-threads --output-on-failure -L fast
	@build/venv/bin/python -B tests/serve/soak.py --octavo build/serve-threads/octavo --minutes 1 --pause 0 --clients 10 --memory-growth 1000

format-check:
	@python3 tools/check/format.py

# Takes over a meant change of the exported symbols or of the public structs.
abi-update: release
	@cmake --build build/release --target abi-update

# Takes over what `make demo` and `make eval` printed last into doc/figures and the pages that show it.
figures:
	@python3 tools/check/docs.py --update

# The H200 tables of doc/BENCH.md, on the NVIDIA GPU of compute capability 9.0 at hand; needs nvcc 13, or a build/h200 from where it is.
bench-h200:
	@tools/h200/run.sh

# PREFIX=/usr/local make install
PREFIX ?= /usr/local
install: release
	@cmake --install build/release --prefix "$(PREFIX)"

# What was built here goes; what was fetched (models, ggml, the private Python) stays. distclean takes all.
clean:
	rm -rf build/release build/wheel build/clang build/sanitize build/threads build/check build/demo build/configure.log
distclean:
	rm -rf build

help:
	@sed -n 's/^# //p' Makefile
