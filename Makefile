# Every target sets itself up: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Real vLLM servers for `make test-vllm`: 2 GB, kept outside the checkout.
VLLM_DIR ?= $(HOME)/.cache/warmroute/vllm-0.32.0

# Real agents for `make test-clients`: 1 GB from npm.
AGENTS_DIR ?= $(HOME)/.cache/warmroute/agents

.PHONY: demo test lint format fuzz lock audit sbom test-vllm test-clients bench vllm clean

demo: $(STAMP)
	$(BIN)/warmroute demo

test: $(STAMP)
	@tests/integration/chromium.sh
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff format --check src tests config
	$(BIN)/ruff check src tests config
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format src tests config
	$(BIN)/ruff check --fix src tests config

# Cases of all fuzzers together.
CASES ?= 1000000

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --cases $(CASES)

# What looks after the dependencies, in a virtual environment of its own.
SUPPLY_VENV  := .venv-supply
SUPPLY       := $(SUPPLY_VENV)/bin
SUPPLY_STAMP := $(SUPPLY_VENV)/.installed-1

# After every change of constraints.txt or of the dependencies in pyproject.toml.
lock: $(SUPPLY_STAMP)
	echo '# What the image is made of, each file known by its digest. Made by `make lock` out of pyproject.toml and constraints.txt.' > requirements.new
	$(SUPPLY)/pip-compile --quiet --generate-hashes --extra dns --extra kv-events --extra otel --extra workers --build-deps-for wheel --allow-unsafe --strip-extras \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate -c constraints.txt \
	  --output-file - pyproject.toml >> requirements.new
	mv requirements.new requirements.lock

# bandit reads the code; pip-audit asks for known faults of the locked versions, for which it needs the network.
audit: $(SUPPLY_STAMP)
	$(SUPPLY)/bandit --quiet --recursive --configfile pyproject.toml src
	$(SUPPLY)/pip-audit --require-hashes --disable-pip --requirement requirements.lock

# What the image is made of, as CycloneDX.
sbom: $(SUPPLY_STAMP)
	$(SUPPLY)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file sbom.json requirements.lock

$(SUPPLY_STAMP):
	$(PYTHON) -m venv $(SUPPLY_VENV)
	$(SUPPLY)/python -m pip install --quiet --disable-pip-version-check \
	  bandit==1.9.4 cyclonedx-bom==7.5.0 pip-audit==2.10.1 pip-tools==7.6.2
	touch $@

test-vllm: $(STAMP) vllm
	VLLM_DIR=$(VLLM_DIR) $(BIN)/pytest tests/vllm

test-clients: $(STAMP)
	tests/clients/install.sh $(AGENTS_DIR)
	AGENTS_DIR=$(AGENTS_DIR) $(BIN)/pytest tests/clients

vllm:
	tests/vllm/install.sh $(VLLM_DIR)

# The peer that warmroute is measured against, in a virtual environment of its own.
BENCH_VENV  := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.installed-0.1.17

bench: $(STAMP) $(BENCH_STAMP)
	$(BIN)/python -m tests.bench.overhead --page docs/benchmarks.md
	$(BIN)/python -m tests.bench.micro --page docs/benchmarks.md

$(BENCH_STAMP):
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check vllm-router==0.1.17
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(SUPPLY_VENV) sbom.json .mypy_cache .ruff_cache .pytest_cache
