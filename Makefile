# Development tasks; `make` alone lists them. Nothing here needs git or a network index by name.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Debian's interpreter by default: service accounts in tests must be able to execute it.
PYTHON ?= /usr/bin/python3
VENV ?= .venv
ARGS ?=
FUZZ_SECONDS ?= 60

BIN := $(VENV)/bin
PIP := $(BIN)/pip -q --disable-pip-version-check
STAMP := $(VENV)/.installed
# What becomes each job. Static: it is started once for each, and nothing on the host changes what it does.
BECOME := basestation_runner/privexec/become/runner-become
BECOME_SOURCES := $(wildcard basestation_runner/privexec/become/*.[ch])
BECOME_FLAGS := -std=gnu11 -D_GNU_SOURCE -O2 -static -D_FORTIFY_SOURCE=2 -fstack-protector-strong
BECOME_WARNINGS := -Wall -Wextra -Wconversion -Werror
LOCKS := requirements/binary.lock requirements/build.lock requirements/dev.lock requirements/runtime.lock
CHECKED := basestation_runner bench cmd release tests
# Debian packages for building the dependencies and running the tests.
APT_PACKAGES := gcc libc6-dev libcap-dev python3-dev python3-venv
# What jobs of some profiles need, and the one-file program, for the tests of those: root can install it.
TEST_PACKAGES := bubblewrap libzstd-dev mpich openmpi-bin zstd
# Most tests wait for processes, so that some can run at a time: a file's in one process, the slow directories first.
SIDE_BY_SIDE := --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
BINARY_VENV := build/binary/venv
BINARY_PIP := $(BINARY_VENV)/bin/pip -q --disable-pip-version-check
BINARY_STAMP := $(BINARY_VENV)/.installed
BINARY := dist/basestation-runner
RUNNER := dist/runner
SBOM := dist/sbom
DEB := dist/basestation-runner.deb
VM_TESTS := vm-test-trixie vm-test-bookworm

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: system-packages $(STAMP) $(BECOME) ## install what is missing: Debian packages (as root), virtual environment, C program

.PHONY: system-packages
system-packages:
	@if ! command -v dpkg-query >/dev/null; then exit 0; fi; \
	missing=(); \
	for package in $(APT_PACKAGES); do \
	  [[ "$$(dpkg-query -W -f '$${db:Status-Status}' "$$package" 2>/dev/null || true)" == installed ]] || missing+=("$$package"); \
	done; \
	if (( $${#missing[@]} == 0 )); then exit 0; fi; \
	if (( $$(id -u) != 0 )); then \
	  echo "missing Debian packages, as root: apt-get install --no-install-recommends $${missing[*]}" >&2; exit 1; \
	fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq </dev/null; \
	apt-get install -y -qq --no-install-recommends "$${missing[@]}" </dev/null

# --no-build-isolation: old source distributions are built by the locked setuptools, not by whatever is newest.
$(STAMP): pyproject.toml requirements/build.lock requirements/dev.lock | system-packages
	[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/build.lock
	$(PIP) install --require-hashes --no-build-isolation --use-pep517 -r requirements/dev.lock
	$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(BECOME): $(BECOME_SOURCES) | system-packages
	gcc $(BECOME_FLAGS) $(BECOME_WARNINGS) -o $@ $(filter %.c,$^)

.PHONY: demo
demo: setup ## run a throw-away runner with three sites, for instance ARGS=--json
	@$(BIN)/runner demo $(ARGS)

ifeq ($(shell id -u),0)
test: APT_PACKAGES += $(TEST_PACKAGES)
endif

.PHONY: test
test: setup ## run the tests, some at a time; as root also those that drop privileges (ARGS for pytest, -n0 for one at a time)
	@if (( $$(id -u) == 0 )); then export RUNNER_MUST_RUN=privileged; fi; $(BIN)/pytest $(SIDE_BY_SIDE) $(ARGS)

.PHONY: fuzz
fuzz: setup ## try new inputs on parsers and loader (FUZZ_SECONDS=60, FUZZ_SEED to repeat a run)
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

.PHONY: chaos
chaos: setup ## as root, kill everything at random moments and see that nothing is lost (CHAOS_ROUNDS=200, CHAOS_SEED)
	$(BIN)/python -m tests.chaos.run

.PHONY: bench
bench: setup ## as root, measure how fast and how small the program is (for instance ARGS=--quick)
	$(BIN)/python -m bench $(ARGS)

$(BINARY_STAMP): requirements/build.lock requirements/binary.lock requirements/runtime.lock | system-packages
	[[ -x $(BINARY_VENV)/bin/python ]] || $(PYTHON) -m venv $(BINARY_VENV)
	$(BINARY_PIP) install --require-hashes -r requirements/build.lock
	$(BINARY_PIP) install --require-hashes --no-build-isolation --use-pep517 -r requirements/runtime.lock
	$(BINARY_PIP) install --require-hashes --no-build-isolation --use-pep517 -r requirements/binary.lock
	@touch $@

COMPILED_FILES := $(shell find basestation_runner cmd -name '*.py' -o -name '*.yaml' -o -name '*.c')
$(BINARY)/runner: $(BINARY_STAMP) $(BECOME) $(COMPILED_FILES) $(wildcard packaging/nuitka/*) release/elf.py
	packaging/nuitka/build $(BINARY)

$(SBOM)/sbom.cdx.json: $(BINARY)/runner release/sbom.py
	rm -rf $(SBOM)
	$(BINARY_VENV)/bin/python -m release.sbom $(BINARY) build/binary/report.xml $(SBOM)

HOST_FILES := $(shell find packaging docs -type f) README.md CHANGELOG.md LICENSE SECURITY.md
$(RUNNER): $(SBOM)/sbom.cdx.json $(HOST_FILES) release/onefile.py | man
	packaging/onefile/build $(BINARY) $(SBOM) $(RUNNER)

.PHONY: binary
binary: system-packages $(RUNNER) ## compile the program to one file, dist/runner, which needs no Python and installs itself

.PHONY: binary-test
binary-test: setup binary ## as root, install dist/runner on a copy of this host and on a virtual machine, and test it
	RUNNER_MUST_RUN=privileged RUNNER_BINARY=$(abspath $(RUNNER)) $(BIN)/pytest tests/binary $(ARGS)

.PHONY: sbom
sbom: system-packages $(SBOM)/sbom.cdx.json ## list what is inside the compiled program, with licences: dist/sbom

$(DEB): $(SBOM)/sbom.cdx.json $(HOST_FILES) | man
	packaging/deb/build $(BINARY) $(SBOM) $(DEB)

.PHONY: deb
deb: system-packages $(DEB) ## make a Debian package of the compiled program: dist/basestation-runner.deb

.PHONY: vm-test
vm-test: setup $(DEB) ## as root, boot Debian 13 and 12 on virtual machines, install the package and test it (ARGS for pytest)
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target $(VM_TESTS)

# A machine has one processor, so both are tested at the same time. The first test may have to make its disk.
.PHONY: $(VM_TESTS)
$(VM_TESTS): vm-test-%:
	RUNNER_MUST_RUN=privileged RUNNER_DEB=$(abspath $(DEB)) RUNNER_VM=$* $(BIN)/pytest -o faulthandler_timeout=900 tests/vm $(ARGS)

binary binary-test deb sbom vm-test: APT_PACKAGES += ccache libzstd-dev patchelf zstd
deb vm-test: APT_PACKAGES += dpkg-dev xz-utils
binary-test vm-test: APT_PACKAGES += e2fsprogs mmdebstrap user-mode-linux

.PHONY: man
man: setup ## write the manual pages to build/man
	$(BIN)/python -m basestation_runner.manual build/man

.PHONY: lint
lint: setup ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CHECKED)

.PHONY: format
format: setup ## rewrite the code in the project's format and apply safe fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: lock
lock: ## resolve the locked dependencies anew (ARGS=--upgrade for newer ones)
	@tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
	$(PYTHON) -m venv "$$tools"; \
	"$$tools/bin/pip" install -q --disable-pip-version-check uv; \
	compile() { \
	  "$$tools/bin/uv" pip compile -q --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --custom-compile-command 'make lock' $(ARGS) "$$@"; \
	}; \
	compile requirements/build.in --output-file requirements/build.lock; \
	compile pyproject.toml --extra daemon --extra metrics --extra vis --output-file requirements/runtime.lock; \
	compile pyproject.toml --all-extras --constraint requirements/runtime.lock --output-file requirements/dev.lock

.PHONY: clean
clean: ## remove everything that the other targets made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CHECKED) -name __pycache__ -prune -exec rm -rf {} +
