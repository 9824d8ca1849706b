# Two commands matter: `make demo` and `make test`. Both make the environment first.
#   make demo BROKER=host:port REDIS=redis://…   the same on a broker and Redis that are already there
#   make setup PIP_ARGS="…"                      more arguments for pip (another index, a CUDA build of torch)
PYTHON   ?= python3
PIP_ARGS ?=
BIN      := .venv/bin
READY    := .venv/.ready
JOBS     ?= 2
DEMO     := $(if $(BROKER),--broker $(BROKER)) $(if $(REDIS),--redis $(REDIS)) $(if $(REPORT),--report $(REPORT))

.PHONY: demo test crash search real-size check setup unit format clean

demo: $(READY)
	$(BIN)/intentloop demo $(DEMO) $(DEMO_ARGS)

test: check
	$(BIN)/pytest tests/integration -q -n $(JOBS) --dist loadfile
	$(BIN)/pytest tests/end_to_end -q

# kill -9 and worse at full size: 20 kills, 200,000 events a scenario, both brokers; about three quarters of an hour
crash: $(READY)
	$(BIN)/python -m tests.crash $(CRASH_ARGS)

# a grid of candidates on the tiny model, as table and picture: layers, healing, quantiser, block, head; var/search
search: $(READY)
	$(BIN)/python -m trainer.search var/search $(SEARCH_ARGS)

# the line's own functions on a random model of real size: sizes, times, memory; needs 8 GB, downloads nothing
real-size: $(READY)
	$(BIN)/python -m trainer.real_size

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory unit

unit: $(READY)
	$(BIN)/pytest tests/unit tests/test_architecture.py -q -n $(JOBS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(READY)

# torch first and alone: resolved together with the rest, pip may take a newer build of several GB
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 15) else f"intentloop needs Python 3.11 to 3.14, $(PYTHON) is {v[0]}.{v[1]}; try make PYTHON=python3.11 …")'
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PIP_ARGS) torch==2.13.0
	$(BIN)/pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv var
