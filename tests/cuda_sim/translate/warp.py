"""What the lanes of a warp or the threads of a block do together: barriers, shuffles, votes, matrices."""

from __future__ import annotations

import re

from .parse import Instruction, Unsupported, elements
from .writer import Writer, vector, writes


@writes("bar barrier", "sync arrive cta aligned warp red popc and or")
def write_barrier(writer: Writer, op: Instruction) -> str:
    if op.has("warp"):
        return f"sync_warp({writer.operand(op.operands[0])}, {writer.at});"
    aligned = "true" if op.name == "bar" or op.has("aligned") else "false"
    if op.has("red"):
        return write_barrier_reduction(writer, op, aligned)
    barrier = writer.operand(op.operands[0])
    count = writer.operand(op.operands[1]) if len(op.operands) > 1 else "0"
    name = "arrive_at_barrier" if op.has("arrive") else "sync_threads"
    return f"{name}({barrier}, {count}, {aligned}, {writer.at});"


def write_barrier_reduction(writer: Writer, op: Instruction, aligned: str) -> str:
    count = writer.operand(op.operands[2]) if len(op.operands) > 3 else "0"
    predicate = writer.operand(op.operands[-1])
    votes = f"vote_of_block({writer.operand(op.operands[1])}, {count}, {predicate}, {aligned}, {writer.at})"
    if op.has("popc"):
        return writer.put(op.operands[0], f"{votes}.yes")
    test = "yes == votes.all" if op.has("and") else "yes != 0"
    return f"{{ BlockVotes votes = {votes}; {writer.put(op.operands[0], f'votes.{test}')} }}"


@writes("shfl", "sync up down bfly idx")
def write_shuffle(writer: Writer, op: Instruction) -> str:
    mode = next(part for part in ("up", "down", "bfly", "idx") if op.has(part))
    target, _, inside = op.operands[0].partition("|")
    value, lane, bounds, mask = (writer.operand(text) for text in op.operands[1:5])
    keep = " " + writer.put(inside, "inside") if inside else ""
    call = f"shuffle(kShuffle{mode.capitalize()}, {value}, {lane}, {bounds}, {mask}, &inside, {writer.at})"
    return f"{{ bool inside; {writer.assign(target, 'u32', call)}{keep} }}"


@writes("vote", "sync all any uni ballot")
def write_vote(writer: Writer, op: Instruction) -> str:
    predicate, mask = (writer.operand(text) for text in op.operands[1:3])
    ballot = f"ballot({predicate}, {mask}, {writer.at})"
    if op.has("ballot"):
        return writer.put(op.operands[0], ballot)
    tests = {"all": "yes == active", "any": "yes != 0", "uni": "(yes == 0 || yes == active)"}
    test = tests[next(part for part in tests if op.has(part))]
    return f"{{ uint32_t active = {mask}, yes = {ballot}; (void)active; {writer.put(op.operands[0], test)} }}"


@writes("match", "any all sync")
def write_match(writer: Writer, op: Instruction) -> str:
    target, _, every = op.operands[0].partition("|")
    value, mask = (writer.operand(text) for text in op.operands[1:3])
    kind = "any" if op.has("any") else "all"
    sets = writer.assign(target, "u32", "found") + (" " + writer.put(every, "found != 0") if every else "")
    return f"{{ uint32_t found = match_{kind}({value}, {mask}, {writer.at}); {sets} }}"


@writes("redux", "sync add min max and or xor")
def write_reduction(writer: Writer, op: Instruction) -> str:
    kind = next(part for part in ("add", "min", "max", "and", "or", "xor") if op.has(part))
    if op.type not in ("u32", "s32", "b32"):
        raise Unsupported(op.text)
    signed = "true" if op.type == "s32" else "false"
    value, mask = (writer.operand(text) for text in op.operands[1:3])
    call = f"reduce_lanes(kReduce{kind.capitalize()}, {signed}, {value}, {mask}, {writer.at})"
    return writer.assign(op.operands[0], "u32", call)


@writes("activemask")
def write_active_mask(writer: Writer, op: Instruction) -> str:
    """The lanes that run in step are up to the machine: here every lane is on its own."""
    return writer.assign(op.operands[0], "u32", "1u << here->lane")


@writes("elect", "sync")
def write_election(writer: Writer, op: Instruction) -> str:
    target, _, chosen = op.operands[0].partition("|")
    call = f"elect({writer.operand(op.operands[1])}, {writer.at})"
    sets = f"{writer.assign(target, 'u32', 'leader')} {writer.put(chosen, 'leader == here->lane')}"
    return f"{{ uint32_t leader = {call}; {sets} }}"


MATRIX_ROWS = "sync aligned m8n8 x1 x2 x4 trans shared shared::cta"


@writes("ldmatrix", MATRIX_ROWS)
def write_load_matrix(writer: Writer, op: Instruction) -> str:
    targets = elements(op.operands[0])
    trans = "true" if op.has("trans") else "false"
    sets = " ".join(writer.put(target, f"out[{k}]") for k, target in enumerate(targets))
    call = f"load_matrices(out, {len(targets)}, {trans}, {writer.address_value(op.operands[1])}, {writer.at});"
    return f"{{ uint32_t out[{len(targets)}]; {call} {sets} }}"


@writes("stmatrix", MATRIX_ROWS)
def write_store_matrix(writer: Writer, op: Instruction) -> str:
    sources = vector(writer, op.operands[1])
    trans = "true" if op.has("trans") else "false"
    call = f"store_matrices(in, {len(sources)}, {trans}, {writer.address_value(op.operands[0])}, {writer.at});"
    return f"{{ uint32_t in[] = {{{', '.join(sources)}}}; {call} }}"


@writes("movmatrix", "sync aligned m8n8 trans")
def write_transpose(writer: Writer, op: Instruction) -> str:
    return writer.assign(op.operands[0], "u32", f"transpose_matrix({writer.operand(op.operands[1])}, {writer.at})")


MMA = {
    ("m16n8k16", "bf16"): "kBFloat16",
    ("m16n8k8", "bf16"): "kBFloat16",
    ("m16n8k16", "f16"): "kFloat16",
    ("m16n8k8", "f16"): "kFloat16",
    ("m16n8k8", "tf32"): "kTFloat32",
    ("m16n8k4", "tf32"): "kTFloat32",
}


@writes("mma", "sync aligned m16n8k16 m16n8k8 m16n8k4 row col")
def write_mma(writer: Writer, op: Instruction) -> str:
    """D = A B + C of one warp, sums in f32."""
    shape = next(part for part in op.modifiers if part.startswith("m16"))
    accumulator, left, right, initial = op.types
    if (accumulator, initial) != ("f32", "f32") or left != right or (shape, left) not in MMA:
        raise Unsupported(op.text)
    a, b, c = (vector(writer, text) for text in op.operands[1:])
    depth = int(re.sub(r".*k", "", shape))
    sets = " ".join(writer.put(target, f"sums[{k}]") for k, target in enumerate(elements(op.operands[0])))
    return (
        f"{{ uint32_t a[] = {{{', '.join(a)}}}, b[] = {{{', '.join(b)}}}, sums[] = {{{', '.join(c)}}}; "
        f"multiply_matrices({MMA[shape, left]}, {depth}, sums, a, b, {writer.at}); {sets} }}"
    )


def operand_list(writer: Writer, text: str) -> str:
    return ", ".join(writer.operand(element) for element in elements(text))
