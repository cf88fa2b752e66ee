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
def write_mbarrier(writer: Writer, op: Instruction) -> str:
    writer.uses.add("async_proxy")
    if op.has("arrive_drop", "complete_tx", "relaxed"):
        raise Unsupported(op.text)
    if op.has("init"):
        return f"init_mbarrier({writer.address_value(op.operands[0])}, {writer.operand(op.operands[1])}, {writer.at});"
    if op.has("inval"):
        return f"invalidate_mbarrier({writer.address_value(op.operands[0])}, {writer.at});"
    if op.has("try_wait", "test_wait"):
        return write_wait(writer, op)
    if op.has("arrive"):
        # The token is optional where the barrier may belong to another block of a cluster.
        token, *rest = op.operands if not op.operands[0].startswith("[") else ["_", *op.operands]
        address = writer.address_value(rest[0])
        number = writer.operand(rest[1]) if len(rest) > 1 else None
        bytes_, count = (number or "0", "1") if op.has("expect_tx") else ("0", number or "1")
        return writer.assign(token, "u64", f"arrive_at_mbarrier({address}, {count}, {bytes_}, {writer.at})")
    if op.has("expect_tx"):
        return f"expect_bytes({writer.address_value(op.operands[0])}, {writer.operand(op.operands[1])}, {writer.at});"
    raise Unsupported(op.text)


def write_wait(writer: Writer, op: Instruction) -> str:
    target, address, phase = op.operands[:3]
    blocks = "true" if op.has("try_wait") else "false"
    parity = f"(uint32_t)({writer.operand(phase)}) & 1"
    call = f"wait_for_mbarrier({writer.address_value(address)}, {parity}, {blocks}, {writer.at})"
    return writer.put(target, call)


def write_bulk_copy(writer: Writer, op: Instruction) -> str:
    """`cp.async.bulk...`: one thread starts a copy of many bytes."""
    writer.uses.add("async_proxy")
    if op.has("commit_group"):
        return "commit_bulk_stores();"
    if op.has("wait_group"):
        return f"wait_for_bulk_stores({op.operands[0]}, {writer.at});"
    operands = op.operands[:-1] if op.has("L2::cache_hint") else op.operands
    to_shared = op.modifiers.index("global") > min(
        op.modifiers.index(part) for part in op.modifiers if part.startswith("shared")
    )
    if op.has("tensor"):
        return write_tensor_copy(writer, op, operands, to_shared)
    target, source, size, *barrier = operands
    given = f"{writer.address_value(target)}, {writer.address_value(source)}, {writer.operand(size)}"
    if to_shared:
        return f"bulk_load({given}, {writer.address_value(barrier[0])}, {writer.at});"
    return f"bulk_store({given}, {reduction(op)}, {writer.at});"


def reduction(op: Instruction) -> str:
    """What a store does with the values that are there: replaces them or adds to them."""
    if not op.has("reduce"):
        return "kReplace"
    if not op.has("add"):
        raise Unsupported(op.text)
    kinds = {"f32": "kAddFloat32", "bf16": "kAddBFloat16", "f16": "kAddFloat16", "u32": "kAddUint32"}
    return f"{kinds[op.types[0]] if op.types else 'kAddTensor'}"


def write_tensor_copy(writer: Writer, op: Instruction, operands: list[str], to_shared: bool) -> str:
    tensor = operands[1] if to_shared else operands[0]
    descriptor, coordinates = split(tensor.strip()[1:-1])
    places = elements(coordinates)
    address = writer.address_value(f"[{descriptor}]")
    array = f"int32_t place[] = {{{', '.join(f'(int32_t)({writer.operand(x)})' for x in places)}}};"
    if to_shared:
        target, barrier = writer.address_value(operands[0]), writer.address_value(operands[2])
        call = f"tensor_load({target}, {address}, place, {len(places)}, {barrier}, {writer.at});"
    else:
        source = writer.address_value(operands[1])
        call = f"tensor_store({address}, place, {len(places)}, {source}, {reduction(op)}, {writer.at});"
    return f"{{ {array} {call} }}"


SHAPES = " ".join(f"m64n{n}k16" for n in range(8, 257, 8))


@writes("wgmma", f"fence commit_group wait_group mma_async sync aligned {SHAPES}")
def write_wgmma(writer: Writer, op: Instruction) -> str:
    writer.uses.add("async_proxy")
    if op.has("fence"):
        return f"wgmma_fence({writer.at});"
    if op.has("commit_group"):
        return f"wgmma_commit({writer.at});"
    if op.has("wait_group"):
        return f"wgmma_wait({op.operands[0]}, {writer.at});"
    columns = next(int(match[1]) for part in op.modifiers if (match := re.match(r"m64n(\d+)k16", part)))
    accumulator, left, right = op.types
    if accumulator != "f32" or left != right:
        raise Unsupported(op.text)
    kind = {"bf16": "kBFloat16", "f16": "kFloat16"}[left]
    targets, a, b, keep, sign_a, sign_b, *major = op.operands
    in_registers = a.startswith("{")
    transposed_a, transposed_b = ("0", *major) if in_registers else major
    sums = vector(writer, targets)
    if len(sums) != columns // 2:
        raise Unsupported(op.text)
    fragment = f"uint32_t a[] = {{{operand_list(writer, a)}}};" if in_registers else ""
    sets = " ".join(writer.put(target, f"sums[{k}]") for k, target in enumerate(elements(targets)))
    return (
        f"{{ {fragment} uint32_t sums[] = {{{', '.join(sums)}}}; "
        f"Wgmma product = {{{kind}, {columns}, {'a' if in_registers else 'NULL'}, "
        f"{'0' if in_registers else writer.operand(a)}, {writer.operand(b)}, {writer.operand(keep)}, "
        f"{sign_a}, {sign_b}, {transposed_a} != 0, {transposed_b} != 0}}; "
        f"multiply_matrices_async(&product, sums, {writer.at}); {sets} }}"
    )
