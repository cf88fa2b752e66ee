"""Every architecture of transformers that can be built tiny: tegula agrees with eager attention wherever sdpa does.

`python tools/architectures.py` runs more checks on each and writes docs/architectures.md.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model is made here
transformers = pytest.importorskip("transformers")

from architectures.compare import MATTERS, Comparison  # noqa: E402
from architectures.excluded import (  # noqa: E402
    ATTENTION_MATTERS_LITTLE,
    EXCLUDED,
    OWN_ATTENTION,
    REPRESENTATIVES,
    TRANSFORMERS,
    names_in,
)
from architectures.models import model_types  # noqa: E402
from tegula.integrations.transformers import register  # noqa: E402

pytestmark = pytest.mark.isa_once

pinned = pytest.mark.skipif(
    transformers.__version__ != TRANSFORMERS, reason=f"the lists are those of transformers {TRANSFORMERS}"
)
INCLUDED = [name for name in model_types() if name not in names_in(EXCLUDED)]
REPLACED = [name for name in INCLUDED if name not in OWN_ATTENTION]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The models are tiny, and warn about being so."""
    threads, verbosity = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    register()
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)


def compared(model_type):
    """A comparison whose models are built; skips where another release of transformers has changed."""
    comparison = Comparison(model_type)
    if comparison.result.reason and transformers.__version__ != TRANSFORMERS:
        pytest.skip(comparison.result.reason)
    assert comparison.result.reason == ""
    return comparison


def agrees(comparison, *checks):
    outcomes = {name: comparison.check(name) for name in checks}
    assert {name: outcome for name, outcome in outcomes.items() if not outcome.right} == {}
    return outcomes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", REPLACED)
def test_replaced_attention(model_type):
    comparison = compared(model_type)
    assert comparison.result.calls > 0
    assert comparison.result.matters > MATTERS or model_type in ATTENTION_MATTERS_LITTLE
    outcomes = agrees(comparison, "forward", "right", "left", "gradients")
    assert outcomes["forward"].reason == ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", [name for name in INCLUDED if name in OWN_ATTENTION])
def test_own_attention_is_not_harmed(model_type):
    comparison = compared(model_type)
    assert comparison.result.calls == 0
    for name in ("forward", "right", "left"):
        outcome = comparison.check(name)
        assert outcome.reason or outcome.equal("tegula"), outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", REPRESENTATIVES)
def test_generation_caches_packing_and_bfloat16(model_type):
    agrees(compared(model_type), "bf16", "dynamic", "static", "chunk", "packed")


@pinned
def test_more_than_three_hundred_architectures():
    assert len(REPLACED) > 300


@pinned
def test_lists_name_model_types_once():
    excluded = [name for names in EXCLUDED.values() for name in names.split()]
    listed = [*excluded, *OWN_ATTENTION]
    assert len(listed) == len(set(listed))
    assert set(listed) | set(REPRESENTATIVES) | set(ATTENTION_MATTERS_LITTLE) <= set(model_types())
    assert set(REPRESENTATIVES) <= set(REPLACED)
