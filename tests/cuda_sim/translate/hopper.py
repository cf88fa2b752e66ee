"""mbarriers, bulk and tensor copies and warpgroup matrix products of sm_90a."""

from __future__ import annotations

import re

from .parse import Instruction, Unsupported, elements, split
from .warp import operand_list
from .writer import Writer, vector, writes

MBARRIER = (
    "init inval arrive arrive_drop expect_tx complete_tx try_wait test_wait parity "
    "shared shared::cta shared::cluster release acquire relaxed cta"
)


@writes("mbarrier", MBARRIER)
def write_mbarrier(w: Writer, i: Instruction) -> str:
    w.uses.add("async_proxy")
    if i.has("arrive_drop", "complete_tx", "relaxed"):
        raise Unsupported(i.text)
    if i.has("init"):
        return f"init_mbarrier({w.address_value(i.operands[0])}, {w.operand(i.operands[1])}, {w.at});"
    if i.has("inval"):
        return f"invalidate_mbarrier({w.address_value(i.operands[0])}, {w.at});"
    if i.has("try_wait", "test_wait"):
        return write_wait(w, i)
    if i.has("arrive"):
        # The token is optional where the barrier may belong to another block of a cluster.
        token, *rest = i.operands if not i.operands[0].startswith("[") else ["_", *i.operands]
        address = w.address_value(rest[0])
        number = w.operand(rest[1]) if len(rest) > 1 else None
        bytes_, count = (number or "0", "1") if i.has("expect_tx") else ("0", number or "1")
        return w.assign(token, "u64", f"arrive_at_mbarrier({address}, {count}, {bytes_}, {w.at})")
    if i.has("expect_tx"):
        return f"expect_bytes({w.address_value(i.operands[0])}, {w.operand(i.operands[1])}, {w.at});"
    raise Unsupported(i.text)


def write_wait(w: Writer, i: Instruction) -> str:
    target, address, phase = i.operands[:3]
    blocks = "true" if i.has("try_wait") else "false"
    parity = f"(uint32_t)({w.operand(phase)}) & 1"
    call = f"wait_for_mbarrier({w.address_value(address)}, {parity}, {blocks}, {w.at})"
    return w.put(target, call)


def write_bulk_copy(w: Writer, i: Instruction) -> str:
    """`cp.async.bulk...`: one thread starts a copy of many bytes."""
    w.uses.add("async_proxy")
    if i.has("commit_group"):
        return "commit_bulk_stores();"
    if i.has("wait_group"):
        return f"wait_for_bulk_stores({i.operands[0]}, {w.at});"
    operands = i.operands[:-1] if i.has("L2::cache_hint") else i.operands
    to_shared = i.modifiers.index("global") > min(
        i.modifiers.index(part) for part in i.modifiers if part.startswith("shared")
    )
    if i.has("tensor"):
        return write_tensor_copy(w, i, operands, to_shared)
    if to_shared:
        target, source, size, barrier = operands
        addresses = f"{w.address_value(target)}, {w.address_value(source)}, {w.operand(size)}"
        return f"bulk_load({addresses}, {w.address_value(barrier)}, {w.at});"
    target, source, size = operands
    add = reduction(i)
    return f"bulk_store({w.address_value(target)}, {w.address_value(source)}, {w.operand(size)}, {add}, {w.at});"


def reduction(i: Instruction) -> str:
    """What a store does with the values that are there: replaces them or adds to them."""
    if not i.has("reduce"):
        return "kReplace"
    if not i.has("add"):
        raise Unsupported(i.text)
    kinds = {"f32": "kAddFloat32", "bf16": "kAddBFloat16", "f16": "kAddFloat16", "u32": "kAddUint32"}
    return f"{kinds[i.types[0]] if i.types else 'kAddTensor'}"


def write_tensor_copy(w: Writer, i: Instruction, operands: list[str], to_shared: bool) -> str:
    tensor = operands[1] if to_shared else operands[0]
    descriptor, coordinates = split(tensor.strip()[1:-1])
    places = elements(coordinates)
    address = w.address_value(f"[{descriptor}]")
    array = f"int32_t place[] = {{{', '.join(f'(int32_t)({w.operand(x)})' for x in places)}}};"
    if to_shared:
        target, barrier = w.address_value(operands[0]), w.address_value(operands[2])
        call = f"tensor_load({target}, {address}, place, {len(places)}, {barrier}, {w.at});"
    else:
        source = w.address_value(operands[1])
        call = f"tensor_store({address}, place, {len(places)}, {source}, {reduction(i)}, {w.at});"
    return f"{{ {array} {call} }}"


SHAPES = " ".join(f"m64n{n}k16" for n in range(8, 257, 8))


@writes("wgmma", f"fence commit_group wait_group mma_async sync aligned {SHAPES}")
def write_wgmma(w: Writer, i: Instruction) -> str:
    w.uses.add("async_proxy")
    if i.has("fence"):
        return f"wgmma_fence({w.at});"
    if i.has("commit_group"):
        return f"wgmma_commit({w.at});"
    if i.has("wait_group"):
        return f"wgmma_wait({i.operands[0]}, {w.at});"
    columns = next(int(match[1]) for part in i.modifiers if (match := re.match(r"m64n(\d+)k16", part)))
    accumulator, left, right = i.types
    if accumulator != "f32" or left != right:
        raise Unsupported(i.text)
    kind = {"bf16": "kBFloat16", "f16": "kFloat16"}[left]
    targets, a, b, keep, sign_a, sign_b, *major = i.operands
    in_registers = a.startswith("{")
    transposed_a, transposed_b = ("0", *major) if in_registers else major
    sums = vector(w, targets)
    if len(sums) != columns // 2:
        raise Unsupported(i.text)
    fragment = f"uint32_t a[] = {{{operand_list(w, a)}}};" if in_registers else ""
    sets = " ".join(w.put(target, f"sums[{k}]") for k, target in enumerate(elements(targets)))
    return (
        f"{{ {fragment} uint32_t sums[] = {{{', '.join(sums)}}}; "
        f"Wgmma product = {{{kind}, {columns}, {'a' if in_registers else 'NULL'}, "
        f"{'0' if in_registers else w.operand(a)}, {w.operand(b)}, {w.operand(keep)}, "
        f"{sign_a}, {sign_b}, {transposed_a} != 0, {transposed_b} != 0}}; "
        f"multiply_matrices_async(&product, sums, {w.at}); {sets} }}"
    )
