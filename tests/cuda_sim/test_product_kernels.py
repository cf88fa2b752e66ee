"""Gates for the package's kernels that need no GPU: inline asm, registers, machine instructions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import tegula as tg

from . import cubins, ptxas_table
from .build import MissingTool
from .cubins import fatbins_in
from .inline_asm import faults_in, faults_of, statements

pytestmark = pytest.mark.isa_once

# One instruction in so many may access local memory: small arrays with computed places do, spilled registers need more.
LOCAL_SHARE = 50


# --- inline asm --------------------------------------------------------------------------------------


def test_inline_asm_says_what_it_touches():
    assert faults_in(ptxas_table.ROOT / "csrc") == []


@pytest.mark.parametrize(
    ("file", "text", "faults"),
    [
        ("ptx.cuh", 'asm volatile("cp.async.commit_group;" ::: "memory");', 0),
        ("ptx_hopper.cuh", 'asm volatile("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', 0),
        ("ptx.cuh", 'asm volatile("ld.shared.b32 %0, [%1];"\n : "=r"(v) : "r"(a[f(0, 1)]) : "memory");', 0),
        ("ptx.cuh", '// asm("st.global")\nasm volatile("");', 0),
        ("tile.cuh", 'asm volatile("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', 1),
        ("ptx.cuh", 'asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', 1),
        ("ptx.cuh", 'asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(v) : "r"(a));', 1),
        ("ptx.cuh", 'asm volatile("cp.async.wait_group %0;" ::"n"(kPending));', 1),
        ("ptx.cuh", 'asm("{.reg .pred p;\\n" "mbarrier.try_wait.b64 p, [%0];}" ::"r"(a) : "cc");', 2),
        ("tile.cuh", 'asm("bar.sync 0;");', 3),
    ],
)
def test_faults_of_inline_asm(file, text, faults):
    assert len([fault for statement in statements(file, text) for fault in faults_of(statement)]) == faults


# --- what was compiled -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fatbins(tmp_path_factory) -> list[Path]:
    """Of the module under test, which was built from these sources."""
    if not tg.cuda.is_built():
        pytest.skip("tegula was built without CUDA kernels")
    from tegula import _cuda

    try:
        cubins.tool("cuobjdump"), cubins.tool("nvdisasm")
    except MissingTool as missing:
        pytest.skip(str(missing))
    found = cubins.module_fatbins(Path(_cuda.__file__), tmp_path_factory.mktemp("fatbins"))
    if not found:
        pytest.skip("the module has no kernels for real GPUs")
    return found


def test_resources(fatbins):
    """Registers, stack and static shared memory are those of the committed table."""
    from tegula import _cuda

    if _cuda.toolkit != ptxas_table.TOOLKIT:
        pytest.skip(f"the table is of nvcc {ptxas_table.TOOLKIT}, the module of {_cuda.toolkit}")
    found = ptxas_table.measure(fatbins)
    targets = {target for _, target in found}  # those that the module was built for
    committed, measured = ptxas_table.TABLE.read_text(encoding="utf-8"), ptxas_table.render(found)
    differences = ptxas_table.changes(committed, measured, targets)
    how = "If that is meant: python tests/cuda_sim/ptxas_table.py --write"
    assert not differences, "\n".join([*differences, how])


@pytest.fixture(scope="module")
def blocks(fatbins) -> dict[str, list[Counter[str]]]:
    """Basic blocks of the kernels for tensor cores: of sm_90a for wgmma, of sm_80 for the others."""
    found: dict[str, list[Counter[str]]] = {}
    for fatbin in fatbins:
        names = {kernel for kernel, _ in cubins.resources_of(fatbin) if "mma" in kernel}
        target = "90a" if any("wgmma" in name for name in names) else "80"
        if names:
            found.update({kernel: blocks for (kernel, _), blocks in cubins.blocks_of(fatbin, [target]).items()})
    return {kernel: blocks for kernel, blocks in found.items() if "mma" in kernel}


@pytest.fixture(scope="module")
def instructions(blocks) -> dict[str, Counter[str]]:
    return {kernel: sum(parts, Counter()) for kernel, parts in blocks.items()}


def test_tensor_cores_are_used(instructions):
    """By the instructions that the kernels' names promise."""
    assert instructions
    idle = [kernel for kernel, counts in instructions.items() if counts["HGMMA" if "wgmma" in kernel else "HMMA"] == 0]
    assert idle == []


def test_products_of_warpgroups_are_not_serialised(instructions):
    """ptxas waits for each of them where it cannot prove that nothing touches their registers meanwhile."""
    waits = {kernel: counts for kernel, counts in instructions.items() if "wgmma" in kernel}
    assert {kernel for kernel, counts in waits.items() if counts["WARPGROUP"] >= counts["HGMMA"]} == set()


def local(counts: Counter[str]) -> int:
    """Loads and stores of local memory."""
    return counts["LDL"] + counts["STL"]


def test_products_use_no_local_memory(blocks):
    """Tiles with masked keys may, aside. Kernels that know all options have too few registers for it."""
    busy = {
        kernel: sum(local(block) for block in parts if block["HMMA"] or block["HGMMA"])
        for kernel, parts in blocks.items()
        if "rich" not in kernel
    }
    assert busy
    assert {kernel: count for kernel, count in busy.items() if count} == {}


def test_local_memory_is_rare(instructions):
    too_many = {k: local(counts) for k, counts in instructions.items() if local(counts) * LOCAL_SHARE > counts.total()}
    assert too_many == {}


def test_basic_blocks():
    code = [(0, "MOV", "R1, R2"), (16, "HMMA", "R0"), (32, "BRA", "0x10"), (48, "LDL", "R0"), (64, "EXIT", "")]
    assert cubins.split(code) == [{"MOV": 1}, {"HMMA": 1, "BRA": 1}, {"LDL": 1, "EXIT": 1}]


def test_fatbins_are_found_within_a_file():
    made = cubins.FATBIN.pack(cubins.MAGIC, cubins.VERSION, 16, 5) + b"abcde"
    empty = cubins.MAGIC.to_bytes(4, "little") + bytes(60)
    cut = cubins.FATBIN.pack(cubins.MAGIC, cubins.VERSION, 16, 500)
    assert list(fatbins_in(b"xx" + empty + made + b"yyy" + made + cut)) == [made, made]
