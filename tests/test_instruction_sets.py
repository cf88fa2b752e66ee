"""Which instruction sets there are, which one runs, and that the one that was asked for is it."""

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import run_python, same_bits

pytestmark = pytest.mark.isa_once

ISA = tg.config()["isa"]
KNOWN = ["scalar", "avx2", "avx512", "avx512bf16", "neon"]
SHOW_ACTIVE = "import tegula as tg; print(tg.config()['isa']['active'])"


def test_config_says_what_this_build_is():
    config = tg.config()
    assert {"version", "compiler", "isa", "threads", "cuda", "numpy", "torch"} <= config.keys()
    assert config["version"] == tg.__version__
    assert config["numpy"] == np.__version__
    assert config["threads"] == tg.get_num_threads() >= 1
    assert set(ISA["available"]) <= set(ISA["compiled"]) <= set(KNOWN)
    assert "scalar" in ISA["available"]
    assert ISA["active"] in ISA["available"]


def test_show_config_prints_it(capsys):
    tg.show_config()
    printed = capsys.readouterr().out
    for fact in (tg.__version__, ISA["active"], np.__version__, *ISA["compiled"]):
        assert fact in printed


def test_every_set_of_this_processor_is_available():
    """What the kernel of the operating system reports, against what was detected here."""
    with open("/proc/cpuinfo") as file:
        flags = next((set(line.split()) for line in file if line.startswith("flags")), set())
    needs = {
        "scalar": set(),
        "avx2": {"avx2", "fma", "f16c", "bmi2"},
        "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        "avx512bf16": {"avx512_bf16"},
    }
    if not flags:
        pytest.skip("no x86 processor flags")
    has = [name for name in needs if name in ISA["compiled"] and needs[name] <= flags]
    assert ISA["available"] == has


def test_the_widest_set_is_the_default():
    assert run_python(SHOW_ACTIVE, TEGULA_ISA=None).strip() == ISA["available"][-1]


@pytest.mark.parametrize("name", ISA["available"])
def test_a_set_can_be_pinned_by_call_and_by_environment(name):
    tg.set_isa(name)
    assert tg.config()["isa"]["active"] == name
    assert run_python(SHOW_ACTIVE, TEGULA_ISA=name).strip() == name


@pytest.mark.parametrize("name", ["avx1024", "", "AVX2 ", "none"])
def test_an_unknown_set_raises_and_changes_nothing(name):
    before = tg.config()["isa"]["active"]
    with pytest.raises(ValueError) as caught:
        tg.set_isa(name)
    caught.match(repr(name) if name else "''|\"\"|empty")
    for known in ISA["available"]:
        caught.match(known)
    assert tg.config()["isa"]["active"] == before


def test_an_unknown_set_in_the_environment_raises():
    said = run_python(
        """
    try:
        import tegula as tg
        tg.config()
    except ValueError as error:
        print(error)
    """,
        TEGULA_ISA="avx1024",
    )
    assert "TEGULA_ISA" in said and "avx1024" in said and "scalar" in said


@pytest.mark.parametrize("name", [n for n in KNOWN if n not in ISA["available"]])
def test_a_set_this_machine_lacks_raises(name):
    with pytest.raises(ValueError, match=name):
        tg.set_isa(name)


@pytest.mark.parametrize("name", [None, 2, b"avx2"])
def test_the_name_of_a_set_is_a_string(name):
    with pytest.raises(TypeError, match="name|isa"):
        tg.set_isa(name)


def lse_of(name, dtype):
    tg.set_isa(name)
    return tg.attention(*AttentionCase(130, 130, 64, dtype=dtype).arrays(), return_lse=True)[1]


def test_c86_the_pinned_set_is_the_one_that_runs():
    """Its name is what the table of kernels calls itself; and rounding shows whether products were fused."""
    for name in ISA["available"]:
        tg.set_isa(name)
        assert tg.config()["isa"]["active"] == name
        if name != "scalar":
            assert not same_bits(lse_of(name, "float32"), lse_of("scalar", "float32"))


@pytest.mark.skipif("avx512bf16" not in ISA["available"], reason="no dot instruction here")
def test_c69_sixteen_bits_use_the_dot_instruction():
    """Two products are added at a time: sums are rounded elsewhere than float32 multiply-adds round them."""
    assert same_bits(lse_of("avx512bf16", "float32"), lse_of("avx512", "float32"))
    assert not same_bits(lse_of("avx512bf16", "bfloat16"), lse_of("avx512", "bfloat16"))


def test_switching_back_and_forth_gives_the_same_bits():
    arrays = AttentionCase(35, 130, 33).arrays()
    first = {}
    for name in (*ISA["available"], *reversed(ISA["available"])):
        tg.set_isa(name)
        out = tg.attention(*arrays)
        assert same_bits(out, first.setdefault(name, out))


def test_c70_nothing_is_compiled_at_run_time():
    run_python(
        """
    import numpy as np, tegula as tg
    q, k, v = np.ones((3, 4, 4), "f4")
    out, lse = tg.attention(q, k, v, return_lse=True)
    dq, dk, dv = tg.attention_backward(out, q, k, v, out, lse)
    assert np.isfinite(lse).all() and np.array_equal(dv, out)
    """,
        PATH="",
    )


def test_c85_a_machine_without_a_gpu_is_enough():
    said = run_python(
        """
    import numpy as np, tegula as tg
    tg.attention(*np.ones((3, 4, 4), np.float32))
    print(tg.config()["cuda"]["visible"])
    """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert said.strip() in ("False", "0", "[]")


def test_the_callers_floating_point_mode_is_left_alone():
    """Subnormal numbers stay what they are before, in and after a call."""
    tiny = np.float32(1e-40)
    one = np.ones((1, 1), np.float32)
    out = tg.attention(one, one, one * tiny)
    assert out[0, 0] == tiny
    assert np.float32(1e-30) * np.float32(1e-10) != 0
