# Every target does its own set-up in .venv; nothing else on the machine is touched but the
# model cache (see README). `make serve` and `make test` are the two that matter.

SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo "$$p" && break; done)
SGLANG ?= 0.5.23
HOST ?= 127.0.0.1
PORT ?= 30000
MODEL ?=
# A package index with CPU builds of torch, where the default one has only CUDA builds.
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(SGLANG)
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help serve test check format docs bench clean setup test-families test-releases

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY) ## Create .venv with SGLang (without its CUDA stack), MLX and the tools

$(READY): setup.cfg pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; set PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip setuptools wheel
	$(PIP) install --quiet --no-deps "sglang==$(SGLANG)"
	$(PIP) install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--no-build-isolation -e '.[host,test,dev]'
	@touch $@

serve: $(READY) ## Serve the embedded default model (PORT=, HOST=, MODEL=, ARGS=)
	@model="$(MODEL)"; \
	if test -z "$$model"; then model="$$($(BIN)/sglang-mlx fetch-model | tail -n 1)" || exit 1; fi; \
	test -n "$$model" || exit 1; \
	$(BIN)/python scripts/announce.py "$(HOST)" "$(PORT)" & \
	PATH="$(abspath $(BIN)):$$PATH" exec $(BIN)/sglang serve --model-path "$$model" \
		--host "$(HOST)" --port "$(PORT)" $(ARGS)

test: $(READY) ## Run the tests (ARGS= for pytest)
	@$(BIN)/sglang-mlx fetch-model > /dev/null
	$(BIN)/python -m pytest -n auto $(ARGS)

test-families: $(READY) ## The long part of the exactness matrix
	$(BIN)/python -m pytest -n auto -m families -o addopts="-ra --import-mode=importlib" $(ARGS)

test-releases: $(READY) ## Launch every supported SGLang release, each in its own environment
	@$(BIN)/sglang-mlx fetch-model > /dev/null
	$(BIN)/python scripts/test_releases.py $(ARGS)

check: $(READY) ## Lint, types, import rules, generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/hooks/test_docs.py tests/hooks/test_public_api.py \
		tests/contracts/test_table.py tests/contracts/test_usage.py

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Write the generated documents
	$(BIN)/sglang-mlx hooks --write-docs docs/hooks.md
	$(BIN)/sglang-mlx contracts --write-docs docs/contracts.md
	$(BIN)/sglang-mlx families --write-docs docs/families.md
	$(BIN)/sglang-mlx surface --write-docs docs/surface.md

bench: $(READY) ## Time this server beside mlx_lm.server (ARGS=)
	@$(BIN)/sglang-mlx fetch-model > /dev/null
	$(BIN)/python benchmarks/serving.py $(ARGS)

clean: ## Remove what set-up and tests have made
	rm -rf $(VENV) .venv-releases build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
