# Every target sets itself up: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Real vLLM servers for `make test-vllm`: 2 GB, kept outside the checkout.
VLLM_DIR ?= $(HOME)/.cache/warmroute/vllm-0.32.0

.PHONY: demo test lint format test-vllm bench vllm clean

demo: $(STAMP)
	$(BIN)/warmroute demo

test: $(STAMP)
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

test-vllm: $(STAMP) vllm
	VLLM_DIR=$(VLLM_DIR) $(BIN)/pytest tests/vllm

vllm:
	tests/vllm/install.sh $(VLLM_DIR)

bench: $(STAMP)
	$(BIN)/python tests/bench/overhead.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
