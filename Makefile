# The front door: `make demo` shows the main job, `make test` is what CI runs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo bench test lint types unit clean

setup: .venv/installed

# seqeval comes as source alone, which an older pip builds only when told to do it by PEP 517.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --use-pep517 --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/onebert demo

# Beside what people use instead; DATA=FOLDER takes real texts. benchmarks/results/README.md says what it does.
bench: setup
	$(BIN)/python benchmarks/bench.py $(if $(DATA),--data $(DATA))

test: lint types unit

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest --numprocesses auto --dist loadfile

clean:
	rm -rf .venv .bench build dist
