# One command for each job. `make` alone lists them.
#
# Everything is installed into $(VENV), at the versions of constraints.txt. Stamp files remember what is there, so a
# second call starts at once; changing pyproject.toml or constraints.txt installs again.

PYTHON   ?= python3
VENV     ?= .venv
# More words for pip, for instance an index of CPU-only builds of torch.
PIP_ARGS ?=
# Set on the command line alone: some shells export a HOST of their own, and the server must not listen there.
HOST     := 127.0.0.1
PORT     := 8000
# Seed of the groups that decisions are scored on: one that nobody has seen.
DRAW     := 90215
# More words for the command behind a target: `make train ARGS="--minutes 20"`.
ARGS     :=

BIN     := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -qq $(PIP_ARGS) -c constraints.txt
NEEDS   := pyproject.toml constraints.txt
# An environment of its own that holds what a whole lock names.
define INSTALL_LOCK
@echo "Installing $* into $(@D) ..."
@$(PYTHON) -m venv --clear --without-pip $(@D)
@$(BIN)/python -m pip --python $(@D)/bin/python install --disable-pip-version-check -qq $(PIP_ARGS) \
		--no-compile --no-deps -r $<
@cp $< $@
endef
# Clients of the server, each tested by a suite of its own in an environment of its own.
CLIENTS := $(patsubst tests/clients/%/requirements.txt,%,$(wildcard tests/clients/*/requirements.txt))
# Engines of others that ours is measured against, each in an environment of its own.
PEERS   := $(patsubst scripts/peers/%/requirements.txt,%,$(wildcard scripts/peers/*/requirements.txt))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run train eval bench bench-peers figures judgements soak clients test lint format check clean distclean

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.installed-run  ## Serve the bundled model on http://127.0.0.1:8000 (HOST, PORT)
	$(BIN)/fourleaf serve --host $(HOST) --port $(PORT) $(ARGS)

train: $(VENV)/.installed-run  ## Train the bundled model (ARGS="--minutes 20")
	$(BIN)/fourleaf train cabin $(ARGS)

eval: $(VENV)/.installed-run  ## Score the bundled model on its held-out sets
	$(BIN)/fourleaf eval cabin $(ARGS)

bench: $(VENV)/.installed-bench  ## Measure the decode modes against each other and against transformers
	$(BIN)/fourleaf bench $(ARGS)

bench-peers: $(VENV)/.installed-all  ## Measure against llama.cpp and vLLM, same weights (installs them: some minutes)
	-@$(MAKE) --no-print-directory -k $(PEERS:%=.peers/%/.installed)  # one that does not install is left out
	$(BIN)/python scripts/bench_peers.py --json docs/runs/peers.json $(ARGS)

figures: $(VENV)/.installed-bench  ## Measure all of it, drafting held against ar, and write docs/performance.md (an idle machine)
	$(BIN)/fourleaf bench --set patterns --set copying --set random --profile --verify 1000 --json docs/runs/bench.json $(ARGS)
	$(BIN)/python scripts/performance.py docs/runs/bench.json
	$(BIN)/python scripts/prefix_hits.py --json docs/runs/prefix.json

# Two processes share the parts of the set; copies are held against the coupled groups, so these stay together.
judgements: $(VENV)/.installed-run  ## Calibrate the bundled model, score its decisions, write docs/decisions-benchmark.md (DRAW=seed)
	mkdir -p build && rm -f build/judgements-*.json
	$(BIN)/fourleaf calibrate src/fourleaf/models/cabin --threads 2 --picture docs/runs/calibration.svg
	$(BIN)/fourleaf eval judgements --draw $(DRAW) --threads 1 --set coupled,copy --json build/judgements-a.json $(ARGS) & \
	$(BIN)/fourleaf eval judgements --draw $(DRAW) --threads 1 --set control,twin,unknowable,ninth --json build/judgements-b.json $(ARGS); \
	$(BIN)/fourleaf eval sudoku --threads 1 --json build/judgements-d.json; wait
	$(BIN)/python scripts/decision_latency.py --threads 2 --json build/judgements-c.json
	$(BIN)/python scripts/judgements_page.py build/judgements-a.json build/judgements-b.json \
	  --latency build/judgements-c.json --sudoku build/judgements-d.json

soak: $(VENV)/.installed-all  ## Constrained answers and mixed requests by the thousand (hours; ARGS="--share 0.1")
	$(BIN)/python scripts/soak_grammar.py --report docs/runs/soak-grammar.jsonl $(ARGS)
	$(BIN)/python scripts/soak_grammar.py --share 0.05 --checkpoint bundled --report docs/runs/soak-grammar.jsonl $(ARGS)
	$(BIN)/python scripts/soak_engine.py --report docs/runs/soak-engine.jsonl $(ARGS)
	$(BIN)/python scripts/soak_engine.py --checkpoint bundled --report docs/runs/soak-engine.jsonl $(ARGS)
	$(BIN)/python scripts/soak_load.py --minutes 5 --checkpoint bundled --report docs/runs/soak-load.jsonl
	FOURLEAF_CASES=2000 $(BIN)/python -m pytest -q --timeout 7200 -o session_timeout=7200 tests/serve/test_schemathesis.py

clients: $(CLIENTS:%=.clients/%/.installed)  ## Install the clients that the server is tested with

test: check  ## Everything that CI runs: lint, types, imports, tests
	-@$(MAKE) --no-print-directory -k -j 2 clients  # without a network their suites are skipped, and say so
	$(BIN)/python -m pytest --durations=10 $(ARGS)

lint: check  ## The quick half of `make test`: lint, types, imports, size budgets
	$(BIN)/python -m pytest -q tests/test_repository.py

check: $(VENV)/.installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --summary=none --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.installed-all  ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean:  ## Remove caches and build output
	rm -rf build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests scripts docs -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## `clean`, and remove the installed environments
	rm -rf $(VENV) .clients .peers

# `python -m venv` on an environment that is already there keeps what it holds and adds what is missing.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: $(NEEDS) | $(BIN)/python
	@echo "Installing what serving needs into $(VENV) (first time: some minutes) ..."
	$(INSTALL) -e '.[serve,grammar]'
	@touch $@

$(VENV)/.installed-bench: $(NEEDS) | $(BIN)/python
	@echo "Installing what measuring needs into $(VENV) (first time: some minutes) ..."
	$(INSTALL) -e '.[serve,grammar,bench]'
	@touch $(VENV)/.installed-run $@

$(VENV)/.installed-all: $(NEEDS) | $(BIN)/python
	@echo "Installing everything into $(VENV) (first time: some minutes) ..."
	$(INSTALL) -e '.[serve,test,dev]'
	@touch $(VENV)/.installed-run $(VENV)/.installed-bench $@

# The whole lock is in the requirements, so nothing is resolved; the stamp is a copy of them.
.clients/%/.installed: tests/clients/%/requirements.txt | $(BIN)/python
	$(INSTALL_LOCK)

.peers/%/.installed: scripts/peers/%/requirements.txt | $(BIN)/python
	$(INSTALL_LOCK)
