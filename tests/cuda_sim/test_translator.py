"""What the translator refuses, and how the build says what is wrong."""

from __future__ import annotations

import os
import uuid

import pytest

from . import build as building
from .build import BuildError, MissingTool, build
from .translate.module import translate
from .translate.parse import Unsupported

pytestmark = pytest.mark.isa_once

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
FILE = '\t.file\t1 "/somewhere/kernels.cu"\n'


def module(*instructions: str, more: str = "", directives: str = "") -> str:
    body = "\n\t.loc\t1 7 3\n".join(instructions)
    return f"""{HEAD}{more}
.visible .entry test(.param .u64 test_param_0)
{directives}
{{
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.reg .f32 %f<9>;
	.loc 1 7 3
	{body}
	ret;
}}
{FILE}"""


@pytest.mark.parametrize(
    "instruction",
    [
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r2;",  # no such instruction known
        "mul.sat.s32 %r1, %r2, %r3;",  # a modifier without a model
        "cvt.rn.relu.f16.f32 %r1, %f2;",
        "cvt.rn.satfinite.e4m3x2.f32 %r1, %f2, %f3;",  # a type without one
        "barrier.cluster.arrive.aligned;",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};",
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1}, {%r2}, {%r3}, {%r4};",
        "ld.global.v8.f32 {%f1}, [%rd1];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [], [];",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f1,%f2,%f3,%f4}, %rd1, %rd2, 1, 1, 1;",
        "call (%r1), %rd1, (%r2), prototype_0;",  # through a pointer
    ],
)
def test_unknown_instruction_is_refused(instruction):
    """With its text and the line of the source."""
    with pytest.raises(Unsupported) as caught:
        translate(module(instruction), "90a")
    assert instruction.split()[0].rstrip(";") in str(caught.value) or "call of" in str(caught.value)
    assert "kernels.cu:7" in str(caught.value)


def test_clusters_are_refused():
    with pytest.raises(Unsupported, match="clusters"):
        translate(module("ret;", directives=".reqnctapercluster 2, 1, 1"), "90a")


def test_variable_that_kernels_could_write_is_refused():
    with pytest.raises(Unsupported, match="counter"):
        translate(module("mov.u64 %rd1, counter;", more=".visible .global .align 4 .u32 counter;"), "80")


def test_labels_of_blocks_do_not_meet():
    """Inline asm twice over has its labels twice."""
    loop = "{ .reg .pred p; again: setp.eq.u32 p, %r1, 0; @p bra again; }"
    (text,) = translate(module(loop, loop), "80")
    assert text.count("L_again_in_1: ;") == text.count("L_again_in_2: ;") == 1
    assert "goto L_again_in_1;" in text and "goto L_again_in_2;" in text


def test_large_kernels_have_files_of_their_own(monkeypatch):
    monkeypatch.setattr("cuda_sim.translate.module.STATEMENTS_PER_FILE", 12)
    one = module("add.s32 %r1, %r1, 1;")
    both = one + one.replace("test", "other").replace(HEAD, "")
    assert len(translate(both, "80")) == 2


# --- the build ---------------------------------------------------------------------------------------


def test_missing_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(building.shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingTool, match="nvcc"):
        build([], tmp_path / "library.so")


def need_compilers():
    try:
        building.nvcc(), building.gxx()
    except MissingTool as missing:
        pytest.skip(str(missing))


def test_unknown_instruction_stops_the_build(tmp_path):
    need_compilers()
    source = tmp_path / "strange.cu"
    source.write_text(
        'extern "C" __global__ void strange(int* out) {\n'
        '  asm volatile("mad.hi.sat.s32 %0, %0, %0, %0;" : "+r"(*out));\n'
        "}\n",
        encoding="utf-8",
    )
    with pytest.raises(BuildError, match=r"does not know: mad\.hi\.sat\.s32 .*\[strange\.cu:2\]"):
        build([source], tmp_path / "library.so", arches=["80"])


def test_error_of_the_compiler_is_shown(tmp_path):
    need_compilers()
    source = tmp_path / "wrong.cu"
    source.write_text("nonsense", encoding="utf-8")
    with pytest.raises(BuildError, match=r"wrong\.cu"):
        build([source], tmp_path / "library.so", arches=["80"])


def test_second_build_compiles_nothing(tmp_path, monkeypatch):
    """And another header, found by its quoted name, compiles again."""
    need_compilers()
    header, source = tmp_path / "value.h", tmp_path / "kernel.cu"
    unique = f"// {uuid.uuid4()}\n"  # what earlier runs of this test built does not count
    header.write_text(f"{unique}constexpr int kValue = 1;\n", encoding="utf-8")
    source.write_text('#include "value.h"\nextern "C" __global__ void k(int* p) { *p = kValue; }\n', encoding="utf-8")
    target = tmp_path / "library.so"
    build([source], target, arches=["80"])
    written = target.stat().st_mtime_ns

    ran = []
    run = building.run
    monkeypatch.setattr(building, "run", lambda *command: ran.append(command) or run(*command))
    build([source], target, arches=["80"])
    assert all("--version" in command for command in ran)
    assert target.stat().st_mtime_ns == written

    header.write_text(f"{unique}constexpr int kValue = 2;\n", encoding="utf-8")
    build([source], target, arches=["80"])
    assert any("-ptx" in command for command in ran)
    assert target.stat().st_mtime_ns > written


def test_cache_forgets_what_is_not_used(tmp_path):
    old, new = tmp_path / "old.o", tmp_path / "new.o"
    for path in (old, new):
        path.touch()
    (tmp_path / "folder").mkdir()
    for path in (old, tmp_path / "folder"):
        os.utime(path, (0, 0))
    building.forget_unused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.o"]
