"""What the lanes of a warp or the threads of a block do together: barriers, shuffles, votes, matrices."""

from __future__ import annotations

import re

from .parse import Instruction, Unsupported, elements
from .writer import Writer, vector, writes


@writes("bar barrier", "sync arrive cta aligned warp red popc and or")
def write_barrier(w: Writer, i: Instruction) -> str:
    if i.has("warp"):
        return f"sync_warp({w.operand(i.operands[0])}, {w.at});"
    aligned = "true" if i.name == "bar" or i.has("aligned") else "false"
    if i.has("red"):
        return write_barrier_reduction(w, i, aligned)
    barrier = w.operand(i.operands[0])
    count = w.operand(i.operands[1]) if len(i.operands) > 1 else "0"
    name = "arrive_at_barrier" if i.has("arrive") else "sync_threads"
    return f"{name}({barrier}, {count}, {aligned}, {w.at});"


def write_barrier_reduction(w: Writer, i: Instruction, aligned: str) -> str:
    count = w.operand(i.operands[2]) if len(i.operands) > 3 else "0"
    predicate = w.operand(i.operands[-1])
    votes = f"vote_of_block({w.operand(i.operands[1])}, {count}, {predicate}, {aligned}, {w.at})"
    if i.has("popc"):
        return w.put(i.operands[0], f"{votes}.yes")
    test = "yes == votes.all" if i.has("and") else "yes != 0"
    return f"{{ BlockVotes votes = {votes}; {w.put(i.operands[0], f'votes.{test}')} }}"


@writes("shfl", "sync up down bfly idx")
def write_shuffle(w: Writer, i: Instruction) -> str:
    mode = next(part for part in ("up", "down", "bfly", "idx") if i.has(part))
    target, _, inside = i.operands[0].partition("|")
    value, lane, bounds, mask = (w.operand(text) for text in i.operands[1:5])
    keep = " " + w.put(inside, "inside") if inside else ""
    call = f"shuffle(kShuffle{mode.capitalize()}, {value}, {lane}, {bounds}, {mask}, &inside, {w.at})"
    return f"{{ bool inside; {w.assign(target, 'u32', call)}{keep} }}"


@writes("vote", "sync all any uni ballot")
def write_vote(w: Writer, i: Instruction) -> str:
    predicate, mask = (w.operand(text) for text in i.operands[1:3])
    ballot = f"ballot({predicate}, {mask}, {w.at})"
    if i.has("ballot"):
        return w.put(i.operands[0], ballot)
    tests = {"all": "yes == active", "any": "yes != 0", "uni": "(yes == 0 || yes == active)"}
    test = tests[next(part for part in tests if i.has(part))]
    return f"{{ uint32_t active = {mask}, yes = {ballot}; (void)active; {w.put(i.operands[0], test)} }}"


@writes("match", "any all sync")
def write_match(w: Writer, i: Instruction) -> str:
    target, _, every = i.operands[0].partition("|")
    value, mask = (w.operand(text) for text in i.operands[1:3])
    kind = "any" if i.has("any") else "all"
    keep = " " + w.put(every, "found != 0") if every else ""
    return f"{{ uint32_t found = match_{kind}({value}, {mask}, {w.at}); {w.assign(target, 'u32', 'found')}{keep} }}"


@writes("redux", "sync add min max and or xor")
def write_reduction(w: Writer, i: Instruction) -> str:
    kind = next(part for part in ("add", "min", "max", "and", "or", "xor") if i.has(part))
    if i.type not in ("u32", "s32", "b32"):
        raise Unsupported(i.text)
    signed = "true" if i.type == "s32" else "false"
    value, mask = (w.operand(text) for text in i.operands[1:3])
    call = f"reduce_lanes(kReduce{kind.capitalize()}, {signed}, {value}, {mask}, {w.at})"
    return w.assign(i.operands[0], "u32", call)


@writes("activemask")
def write_active_mask(w: Writer, i: Instruction) -> str:
    """The lanes that run in step are up to the machine: here every lane is on its own."""
    return w.assign(i.operands[0], "u32", "1u << here->lane")


@writes("elect", "sync")
def write_election(w: Writer, i: Instruction) -> str:
    target, _, chosen = i.operands[0].partition("|")
    call = f"elect({w.operand(i.operands[1])}, {w.at})"
    sets = f"{w.assign(target, 'u32', 'leader')} {w.put(chosen, 'leader == here->lane')}"
    return f"{{ uint32_t leader = {call}; {sets} }}"


MATRIX_ROWS = "sync aligned m8n8 x1 x2 x4 trans shared shared::cta"


@writes("ldmatrix", MATRIX_ROWS)
def write_load_matrix(w: Writer, i: Instruction) -> str:
    targets = elements(i.operands[0])
    trans = "true" if i.has("trans") else "false"
    sets = " ".join(w.put(target, f"out[{k}]") for k, target in enumerate(targets))
    call = f"load_matrices(out, {len(targets)}, {trans}, {w.address_value(i.operands[1])}, {w.at});"
    return f"{{ uint32_t out[{len(targets)}]; {call} {sets} }}"


@writes("stmatrix", MATRIX_ROWS)
def write_store_matrix(w: Writer, i: Instruction) -> str:
    sources = vector(w, i.operands[1])
    trans = "true" if i.has("trans") else "false"
    call = f"store_matrices(in, {len(sources)}, {trans}, {w.address_value(i.operands[0])}, {w.at});"
    return f"{{ uint32_t in[] = {{{', '.join(sources)}}}; {call} }}"


@writes("movmatrix", "sync aligned m8n8 trans")
def write_transpose(w: Writer, i: Instruction) -> str:
    return w.assign(i.operands[0], "u32", f"transpose_matrix({w.operand(i.operands[1])}, {w.at})")


MMA = {
    ("m16n8k16", "bf16"): "kBFloat16",
    ("m16n8k8", "bf16"): "kBFloat16",
    ("m16n8k16", "f16"): "kFloat16",
    ("m16n8k8", "f16"): "kFloat16",
    ("m16n8k8", "tf32"): "kTFloat32",
    ("m16n8k4", "tf32"): "kTFloat32",
}


@writes("mma", "sync aligned m16n8k16 m16n8k8 m16n8k4 row col")
def write_mma(w: Writer, i: Instruction) -> str:
    """D = A B + C of one warp, sums in f32."""
    shape = next(part for part in i.modifiers if part.startswith("m16"))
    accumulator, left, right, initial = i.types
    if (accumulator, initial) != ("f32", "f32") or left != right or (shape, left) not in MMA:
        raise Unsupported(i.text)
    a, b, c = (vector(w, text) for text in i.operands[1:])
    depth = int(re.sub(r".*k", "", shape))
    sets = " ".join(w.put(target, f"sums[{k}]") for k, target in enumerate(elements(i.operands[0])))
    return (
        f"{{ uint32_t a[] = {{{', '.join(a)}}}, b[] = {{{', '.join(b)}}}, sums[] = {{{', '.join(c)}}}; "
        f"multiply_matrices({MMA[shape, left]}, {depth}, sums, a, b, {w.at}); {sets} }}"
    )


def operand_list(w: Writer, text: str) -> str:
    return ", ".join(w.operand(element) for element in elements(text))
