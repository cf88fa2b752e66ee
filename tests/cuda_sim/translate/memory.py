"""Loads, stores, atomics, fences and copies from global to shared memory."""

from __future__ import annotations

import re

from .parse import SIZES, Instruction, Unsupported, elements
from .writer import FLOAT_NAMES, REGISTER_TYPES, VALUE_TYPES, Writer, identifier, register, writes

CACHE_HINTS = (
    "ca cg cs cv lu wb wt nc L1::no_allocate L1::evict_last L1::evict_first L1::evict_normal L1::evict_unchanged "
    "L2::64B L2::128B L2::256B L2::evict_first L2::evict_last L2::evict_normal L2::cache_hint"
)
SPACES = "shared shared::cta shared::cluster global local const param param::entry param::func"
STRENGTH = "weak volatile relaxed acquire release acq_rel cta gpu sys"


def space_of(op: Instruction) -> str:
    names = [part.partition("::")[0] for part in op.modifiers if part in SPACES.split()]
    return names[0] if names else "generic"


def strength(op: Instruction) -> str:
    """How an access takes part in synchronisation."""
    flags = []
    if op.has("volatile", "relaxed", "acquire", "release", "acq_rel"):
        flags.append("kStrong")
    if op.has("acquire", "acq_rel") and not op.has("cta"):
        flags.append("kAcquire")
    if op.has("release", "acq_rel") and not op.has("cta"):
        flags.append("kRelease")
    if op.has("nc"):
        flags.append("kNonCoherent")
    return " | ".join(f"{flag}" for flag in flags) or "kWeak"


def memory_type(kind: str) -> str:
    """Floats are moved as bits."""
    return REGISTER_TYPES[SIZES[kind]] if kind[0] in "fb" and SIZES[kind] > 1 else VALUE_TYPES[kind]


def checked(writer: Writer, op: Instruction, action: str, address: str, size: int) -> str:
    """The pointer to bytes that may be accessed."""
    space = "shared" if space_of(op) == "shared" else "generic"
    return f"{action}_{space}({writer.address_value(address)}, {size}, {strength(op)}, {writer.at})"


@writes("ld ldu", f"{SPACES} {STRENGTH} {CACHE_HINTS} v2 v4 unified")
def write_load(writer: Writer, op: Instruction) -> str:
    kind, targets = op.type, elements(op.operands[0])
    size = SIZES[kind] * len(targets)
    base, offset = writer.address(op.operands[1])
    if space_of(op) == "param":
        known = writer.parameters.get(base) or (identifier(base) if base in writer.buffers else None)
        checks = f"read_param({writer.address_value(op.operands[1])}, {size}, {writer.at})"
        address = f"({known} + {offset})" if known else checks
    else:
        address = checked(writer, op, "read", op.operands[1], size)
    if len(targets) == 1:
        return load_into(writer, targets[0], kind, address)
    sets = (load_into(writer, x, kind, f"(from + {k * SIZES[kind]})") for k, x in enumerate(targets) if x != "_")
    return f"{{ const char* from = {address}; {' '.join(sets)} }}"


def load_into(writer: Writer, target: str, kind: str, address: str) -> str:
    """Addresses are aligned: misaligned ones were refused."""
    held = writer.float_kind(target)
    if held and SIZES[kind] == SIZES[held]:
        return f"{register(target)} = *(const {FLOAT_NAMES[held]}*){address};"
    return writer.put(target, f"*(const {memory_type(kind)}*){address}")


@writes("st", f"{SPACES} {STRENGTH} {CACHE_HINTS} v2 v4")
def write_store(writer: Writer, op: Instruction) -> str:
    kind, sources = op.type, elements(op.operands[1])
    size = SIZES[kind] * len(sources)
    base, offset = writer.address(op.operands[0])
    if space_of(op) == "param":
        address = f"({'result' if base == writer.result else identifier(base)} + {offset})"
    else:
        address = checked(writer, op, "write", op.operands[0], size)
    if len(sources) == 1:
        return store_from(writer, sources[0], kind, address)
    puts = (store_from(writer, x, kind, f"(to + {k * SIZES[kind]})") for k, x in enumerate(sources))
    return f"{{ char* to = {address}; {' '.join(puts)} }}"


def store_from(writer: Writer, source: str, kind: str, address: str) -> str:
    as_float = writer.float_kind(source) or (kind if "." in source else None)
    if as_float and SIZES[kind] == SIZES[as_float]:
        return f"*({FLOAT_NAMES[as_float]}*){address} = {writer.value(source, as_float)};"
    return f"*({memory_type(kind)}*){address} = {writer.operand(source)};"


UPDATES = {
    "add": "old + {0}",
    "exch": "{0}",
    "cas": "old == {0} ? {1} : old",
    "and": "old & {0}",
    "or": "old | {0}",
    "xor": "old ^ {0}",
    "max": "old > {0} ? old : {0}",
    "min": "old < {0} ? old : {0}",
    "inc": "old >= {0} ? 0 : old + 1",
    "dec": "old == 0 || old > {0} ? {0} : old - 1",
}


@writes("atom red", f"shared shared::cta shared::cluster global {' '.join(UPDATES)} {STRENGTH} noftz v2 v4")
def write_atomic(writer: Writer, op: Instruction) -> str:
    """An update of one value or of several next to each other, each of them atomic for itself."""
    kind = op.type
    operands = op.operands if op.name == "atom" else ["_", *op.operands]
    targets = elements(operands[0]) if op.has("v2", "v4") else [operands[0]]
    sources = [elements(text) for text in operands[2:]]
    update = UPDATES[next(part for part in op.modifiers if part in UPDATES)]
    size = SIZES[kind]
    parts = []
    for k in range(len(sources[0])):
        inputs = [element_value(writer, source[k], kind) for source in sources]
        target = targets[k] if k < len(targets) else "_"
        parts.append(update_of_one(writer, op, target, k * size, update.format(*inputs)))
    total = size * len(sources[0])
    return f"{{ char* word = {checked(writer, op, 'update', operands[1], total)}; {' '.join(parts)} }}"


def element_value(writer: Writer, text: str, kind: str) -> str:
    """A value for arithmetic in an atomic; halves are floats in between."""
    return writer.operand(text) if kind in ("f16x2", "bf16x2", "f16", "bf16") else writer.value(text, kind)


def update_of_one(writer: Writer, op: Instruction, target: str, offset: int, formula: str) -> str:
    kind = op.type
    if kind in ("f16x2", "bf16x2", "f16", "bf16"):
        if not op.has("add"):
            raise Unsupported(op.text)
        word = REGISTER_TYPES[SIZES[kind]]
        name = f"add_{'bfloats' if kind[0] == 'b' else 'halves'}"
        formula = f"{name}(old, {formula.removeprefix('old + ')})"
        keep = "" if target == "_" else writer.put(target, "old")
    else:
        word = VALUE_TYPES[kind]
        keep = "" if target == "_" else writer.assign(target, kind, "old")
    return f"{{ {word}* place = ({word}*)(word + {offset}); {word} old = *place; *place = {formula}; {keep} }}"


@writes(
    "membar fence",
    "cta gl sys gpu sc acq_rel proxy async async.shared::cta alias global shared::cta mbarrier_init release cluster",
)
def write_fence(writer: Writer, op: Instruction) -> str:
    if op.has("proxy"):
        if not any(part.startswith("async") for part in op.modifiers):
            raise Unsupported(op.text)
        return "proxy_fence();"
    if op.has("gl", "sys", "gpu", "cluster"):
        writer.uses.add("fences")
        return "memory_fence();"
    return ";"


@writes("prefetch prefetchu applypriority discard", f"{SPACES} L1 L2 tensormap L2::evict_normal L2::evict_last")
def write_prefetch(writer: Writer, op: Instruction) -> str:
    if op.name == "discard":
        raise Unsupported(op.text)
    return ";"


@writes("createpolicy", "fractional L2::evict_first L2::evict_last L2::evict_unchanged L2::evict_normal")
def write_policy(writer: Writer, op: Instruction) -> str:
    return f"{writer.operand(op.operands[0])} = 0;"


@writes("nanosleep griddepcontrol setmaxnreg pragma", "launch_dependents wait inc dec sync aligned")
def write_nothing(writer: Writer, op: Instruction) -> str:
    return f"give_way({writer.at});" if op.name == "nanosleep" else ";"


ASYNC = f"async ca cg commit_group wait_group wait_all shared shared::cta shared::cluster global {CACHE_HINTS} "
BULK = "bulk tensor 1d 2d 3d 4d 5d tile mbarrier::complete_tx::bytes bulk_group read mbarrier arrive noinc add reduce "


@writes("cp", ASYNC + BULK)
def write_copy(writer: Writer, op: Instruction) -> str:
    if op.modifiers[0] != "async":
        raise Unsupported(op.text)
    if op.has("bulk"):
        from .hopper import write_bulk_copy

        return write_bulk_copy(writer, op)
    if op.has("mbarrier"):
        return f"copies_arrive({writer.address_value(op.operands[0])}, {str(op.has('noinc')).lower()}, {writer.at});"
    if op.has("commit_group"):
        return "commit_copies();"
    if op.has("wait_group"):
        return f"wait_for_copies({op.operands[0]}, {writer.at});"
    if op.has("wait_all"):
        return f"commit_copies(); wait_for_copies(0, {writer.at});"
    size = op.operands[2]
    if not re.fullmatch("4|8|16", size) or (op.has("cg") and size != "16"):
        raise Unsupported(op.text)
    given = op.operands[3:-1] if op.has("L2::cache_hint") else op.operands[3:]
    filled = writer.operand(given[0]) if given else size
    addresses = ", ".join(writer.address_value(text) for text in op.operands[:2])
    return f"copy_async({addresses}, {size}, {filled}, {writer.at});"
