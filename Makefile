# Two commands do all the set-up: `make demo` and `make check`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := out
PYTEST := $(BIN)/python -m pytest -q -n auto --dist loadgroup

.PHONY: demo check check-all install warm fmt lint type docs test slow cov golden bench performance clean

demo: $(VENV)/installed
	$(BIN)/taccl warmup
	mkdir -p $(OUT)
	$(BIN)/taccl synthesize ndv2 allgather --nodes 2 --size 1M --time-limit 40 -o $(OUT)/ndv2-x2-allgather.xml
	$(BIN)/taccl verify $(OUT)/ndv2-x2-allgather.xml
	$(BIN)/taccl evaluate $(OUT)/ndv2-x2-allgather.xml --topology ndv2 --nodes 2 -b 256K -e 2M
	@echo "the command is $(BIN)/taccl: write '. $(BIN)/activate', then 'taccl --help'"

check: install lint type docs test

check-all: check slow

install: $(VENV)/installed-dev

$(VENV)/installed: pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/installed-dev: pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(VENV)/installed $@

fmt: install
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: install
	$(BIN)/ruff format --check . && $(BIN)/ruff check .

type: install
	$(BIN)/mypy

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Once, before two workers of pytest would compile the same.
warm: install
	$(BIN)/taccl warmup

test: warm
	$(PYTEST) -m 'not slow' $(ARGS)

# The cases of long sweeps that `make test` leaves out.
slow: warm
	$(PYTEST) -m slow $(ARGS)

cov: install
	$(BIN)/python -m pytest -q --cov

golden: install
	$(BIN)/python -m pytest -q --update-golden

bench: install
	$(BIN)/python -m benchmarks

performance: install
	$(BIN)/python -m benchmarks.performance -o docs/performance.md

clean:
	rm -rf $(VENV) $(OUT) build *.egg-info
