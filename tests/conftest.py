"""The suite runs once per instruction set this machine has; each test proves which one it ran on."""

from __future__ import annotations

import hypothesis
import pytest
import tegula as tg

# Its files run in processes of their own, where torch believes in a GPU: see test_cuda.py.
collect_ignore = ["cuda"]

ISA = tg.config()["isa"]

# The same examples on every run, so that a red build can be repeated.
hypothesis.settings.register_profile("tegula", derandomize=True, database=None, deadline=None, max_examples=40)
hypothesis.settings.load_profile("tegula")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "isa_once: do not repeat per instruction set; for tests that are not about numbers"
    )


def pytest_generate_tests(metafunc):
    if metafunc.definition.get_closest_marker("isa_once") is None:
        metafunc.parametrize("isa", ISA["available"], indirect=True)


@pytest.fixture(autouse=True)
def isa(request):
    """The instruction set in use: the one under test, or the default where a test runs once."""
    name = getattr(request, "param", ISA["active"])
    tg.set_isa(name)
    assert tg.config()["isa"]["active"] == name
    yield name
    tg.set_isa(ISA["active"])


@pytest.fixture
def threads():
    """Leaves the number of threads as it was."""
    yield
    tg.set_num_threads(None)
