# make run: a gateway, two workers and a real model on this machine.  make test: the whole suite.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .venv-peers
MINUTES ?= 20
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --progress-bar on

.PHONY: run native test test-peers check bench chaos soak soak-worker lock format clean

run: $(VENV)/.run
	@exec $(BIN)/warmlane up

# A faster llama.cpp for this processor, built once into the home folder (a few minutes; needs cmake and a C++ compiler).
native: $(VENV)/.run
	@$(BIN)/python -m engines.gguf.native_build

test: $(VENV)/.dev
	$(BIN)/python -m pytest

# LangChain, instructor, llm and OpenAI's client for Node (22 or later; NODE=PATH names one) against a gateway, in
# environments of their own: about 260 MB, once.
test-peers: $(VENV)/.dev $(CLIENTS)/.ready tests/peers/node_modules/.ready
	$(CLIENTS)/bin/python -m pytest -c tests/peers/pytest.ini tests/peers

# Kills and outages over several gateway processes, on a real Redis; minutes long, and sensitive to a loaded machine.
chaos: $(VENV)/.dev
	$(BIN)/python -m pytest -m chaos

# A gateway under mixed traffic while its engines fail, for MINUTES, watched for leaks of any kind; exit 1 on any violation.
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak.gateway --minutes $(MINUTES)

# One gguf worker under everything at once for MINUTES, watched for leaks of any kind; exit 1 on any violation.
soak-worker: $(VENV)/.dev
	$(BIN)/python -m tests.soak.gguf_worker --minutes $(MINUTES)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.docs_drift

# With PEERS=1 also other gateways, installed into .peers (about 1.2 GB, once), on the same machine in one run.
bench: $(VENV)/.dev
	$(BIN)/python -m tests.benchmarks
ifdef PEERS
	$(BIN)/python -m tests.benchmarks.beside_peers
endif

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The locks carry hashes for every platform and for Python 3.11 to 3.13; uv only writes them, pip installs them.
lock: $(VENV)/.dev
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" pyproject.toml -o requirements/run.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" --extra dev pyproject.toml -c requirements/run.lock -o requirements/dev.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" tests/peers/requirements.in -o tests/peers/requirements.lock

$(VENV)/.run: requirements/run.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing locked dependencies into $(VENV) (about 310 MB on disk, once)"
	@$(PIP) --require-hashes -r requirements/run.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.lock
	@$(PIP) --require-hashes -r requirements/dev.lock
	@touch $@

$(CLIENTS)/.ready: tests/peers/requirements.lock
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@echo "installing the peers' clients into $(CLIENTS)"
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar on --require-hashes -r $<
	@touch $@

tests/peers/node_modules/.ready: tests/peers/package-lock.json
	@echo "installing OpenAI's client for Node into tests/peers/node_modules"
	@cd tests/peers && npm ci --no-audit --no-fund
	@touch $@

clean:
	rm -rf $(VENV) $(CLIENTS) tests/peers/node_modules .warmlane build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
