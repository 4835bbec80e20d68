PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.patchloom-setup
CODE := kernels service clients tests bench proto/generate.py

.PHONY: setup demo test test-long test-cuda check format bench proto serve oracles parity clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[service,fast,dev]'
	touch $@

demo: setup
	PYTHONPATH=. $(BIN)/python clients/examples/demo.py

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-long: setup
	PATCHLOOM_EXAMPLES=10000 $(BIN)/python -m pytest -n 2 --timeout 3600 --dist loadfile

test-cuda: setup
	$(BIN)/python -m pytest -m cuda

check: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: setup
	PYTHONPATH=. $(BIN)/python -m bench

proto: setup
	$(BIN)/python proto/generate.py

serve: setup
	$(BIN)/patchloom serve $(ARGS)

oracles: .venv-oracles/.patchloom-setup

.venv-oracles/.patchloom-setup: constraints.txt
	$(PYTHON) -m venv .venv-oracles
	.venv-oracles/bin/python -m pip install --quiet --upgrade pip
	.venv-oracles/bin/python -m pip install --quiet torch==2.14.1 torchvision==0.29.1
	.venv-oracles/bin/python -m pip install --quiet transformers==5.24.0 pillow==13.0.0 numpy==2.4.6
	touch $@

parity: setup oracles
	$(BIN)/python -m pytest tests/oracles/check_goldens.py

clean:
	rm -rf $(VENV) .venv-oracles .cache demo dist .pytest_cache .mypy_cache .ruff_cache
