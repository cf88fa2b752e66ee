"""Compares eager attention, torch's own (sdpa) and tegula on a tiny random model of every architecture of transformers.

python tools/architectures.py            all of them, and docs/architectures.md is written
python tools/architectures.py bert t5    only these, and the rows are printed
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import warnings
from collections import defaultdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # every model is made here

import torch
import transformers
from tegula.integrations.transformers import register
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from architectures.compare import CHECKS, MATTERS, Architecture, Comparison, Outcome  # noqa: E402
from architectures.excluded import EXCLUDED, names_in  # noqa: E402
from architectures.models import model_types  # noqa: E402

OWN_CHECKS = ("forward", "right", "left")  # for models whose attention is not replaced: only their masks are ours


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model_type", nargs="*", help="default: all, and write docs/architectures.md")
    names = arguments.parse_args().model_type
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the models are tiny
    register()

    results = []
    with tqdm(names or model_types(), unit="model", disable=None) as bar:
        for model_type in bar:
            bar.set_postfix_str(model_type)
            results.append(compared(model_type))
            gc.collect()
    if names:
        print("\n".join(line for found in results for line in (row(found), *notes(found))))
    else:
        (ROOT / "docs" / "architectures.md").write_text(page(results), encoding="utf-8")
        listed = names_in(EXCLUDED)
        moved = [found.model_type for found in results if bool(found.outcomes) == (found.model_type in listed)]
        if moved:
            print(f"tests/architectures/excluded.py has these in the wrong place: {', '.join(moved)}", file=sys.stderr)
    wrong = [found.model_type for found in results if not all(each.right for each in found.outcomes.values())]
    if wrong:
        sys.exit(f"tegula differs from eager where it must not: {', '.join(wrong)}")


def compared(model_type: str) -> Architecture:
    comparison = Comparison(model_type)
    found = comparison.result
    if not found.reason and (found.calls or found.masks):
        for name in CHECKS if found.calls else OWN_CHECKS:
            comparison.check(name, always_sdpa=True)
    return found


# Why results differ from eager's, where it is known.
BECAUSE = {
    "aimv2 aimv2_text_model metaclip_2 metaclip_2_text_model": "the text is pooled at a token of padding, which sees "
    "no key: eager gives the mean of all values there",
    "grounding-dino mm-grounding-dino": "eager adds a bool mask to the scores, as 0 and 1",
    "lightglue": "gradients near zero, of scores that are nearly equal",
}


# --- the page --------------------------------------------------------------------------------------------

HEAD = """# Architectures of Hugging Face transformers

Written by `python tools/architectures.py` with transformers {version}, torch {torch}, on the CPU.

What to expect of `attn_implementation="tegula"`:

- **Compared**: the model calls tegula, and gives what eager attention gives, but for those listed with a remark.
- **Attention of their own** (bloom, mpnet, longformer ...): the model never calls a registered attention and runs as
  with eager, whatever the name; where it uses our masks, a warning says so.
- **Not compared**: no attention that could be replaced; or the general recipe for tiny models and inputs below does not
  fit the type, which says nothing against it. Falcon, GPT-Neo, SAM and others look attention up in a table of their own
  and raise a KeyError for any new name.

Every model type of transformers is built tiny with random weights and run with `attn_implementation="eager"`,
`"sdpa"` and `"tegula"`. What counts is what is called, not what a model declares: a type is listed as compared when its
forward pass calls a function that was registered under a name of its own, and its results change when attention
gives every key the same weight.

| | |
|---|---|
| model types | {types} |
| compared | {compared} |
| equal to eager in every check that applies | {equal} |
| different only where torch's own attention differs from eager as well | {sdpa} |
| refused with an error that says why | {refused} |
| different where torch's own attention is not | {wrong} |
| attention of their own, masks of ours: equal to eager | {own_equal} of {own} |

## Checks

Errors are against eager, relative to the largest entry of each result, or to 1 where that is smaller.

| column | what is compared | at most |
|---|---|---|
| forward | all results, no padding | 3e-5 |
| right, left | the second row of the batch padded; results of real tokens | 3e-5 |
| gradients | of all parameters, with padding, relative to the largest of each parameter | 2e-4 |
| bf16 | forward in bfloat16 against eager in float32, same weights, root mean square | 1.5 times eager's + 0.001 |
| dynamic, static | tokens of greedy generation with left padding, growing cache and cache of fixed size | none |
| chunk | several tokens at once onto a filled cache | 3e-5 |
| packed | two documents in one row, told apart by position ids that start from 0 again | 3e-5 |

`=` equal; a space: does not apply, or eager itself does not run it (see the remarks); `sdpa`: differs, as torch's own
attention does (registered under another name where a model does not take it as `"sdpa"`); `no`: refused with an error;
`WRONG`: differs, and torch's own attention does not, or raises.
"""


def page(results: list[Architecture]) -> str:
    run = [found for found in results if found.outcomes]
    replaced = [found for found in run if found.calls]
    own = [found for found in run if not found.calls]
    verdicts: dict[str, int] = defaultdict(int)
    for found in replaced:
        verdicts[verdict(found)] += 1
    head = HEAD.format(
        version=transformers.__version__,
        torch=torch.__version__.split("+")[0],
        types=len(results),
        compared=len(replaced),
        equal=verdicts["="],
        sdpa=verdicts["sdpa"],
        refused=verdicts["no"],
        wrong=verdicts["WRONG"],
        own=len(own),
        own_equal=sum(verdict(found) == "=" for found in own),
    )
    columns = ["model type", "class", "input", *CHECKS]
    lines = [head, "## Compared", "", header(columns), *map(row, replaced), ""]
    lines += ["Remarks:", "", *(line for found in replaced for line in notes(found)), ""]
    lines += ["## Attention of their own", ""]
    lines += ["These never call a registered function, but have their masks made by it; they must not be harmed.", ""]
    lines += [header(["model type", "class", "input", *OWN_CHECKS])]
    lines += [*(row(found, OWN_CHECKS) for found in own), ""]
    lines += [*(line for found in own for line in notes(found)), ""]
    lines += ["## Not compared", "", *not_compared(results)]
    return "\n".join(lines).rstrip() + "\n"


def not_compared(results: list[Architecture]) -> list[str]:
    """Model types by reason."""
    by_reason = defaultdict(list)
    for found in results:
        if not found.outcomes:
            by_reason[reason_of(found)].append(found.model_type)
    lines = []
    for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"- {reason}: {', '.join(names)}")
    return lines


def reason_of(found: Architecture) -> str:
    if not found.reason:
        return "neither attention nor masks go through the interface"
    reason = str(found.reason).replace("|", "/")  # a bar would end a cell
    return reason.replace("KeyError: 'uniform'", "takes its attention from a table of its own: KeyError")


def verdict(found: Architecture) -> str:
    """The worst of all checks."""
    signs = [sign(outcome) for outcome in found.outcomes.values()]
    return next((worst for worst in ("WRONG", "no", "sdpa") if worst in signs), "=")


def sign(outcome: Outcome) -> str:
    if outcome.reason:
        return " "
    if outcome.equal("tegula"):
        return "="
    if not outcome.right:
        return "WRONG"
    return "no" if outcome.refused else "sdpa"


def kind(found: Architecture) -> str:
    """What goes in, by the names of inputs."""
    words = {
        "text": ("input_ids",),
        "image": ("pixel_values", "image", "flattened_patches", "grid_thw"),
        "video": ("pixel_values_videos",),
        "audio": ("input_features", "input_values", "audio_mel"),
    }
    return ", ".join(word for word, names in words.items() if set(names) & set(found.inputs)) or "vectors"


def header(columns: list[str]) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def row(found: Architecture, checks: tuple[str, ...] = tuple(CHECKS)) -> str:
    if not found.outcomes:
        return f"{found.model_type}: {reason_of(found)}"
    signs = [sign(found.outcomes[name]) if name in found.outcomes else " " for name in checks]
    return f"| {' | '.join([found.model_type, found.name, kind(found), *signs])} |"


def notes(found: Architecture) -> list[str]:
    """Every check that is not equal, and every one that eager attention does not run either."""
    lines = defaultdict(list)
    for name, outcome in found.outcomes.items():
        if outcome.reason.startswith("eager: "):
            lines[f"not run, {outcome.reason}"].append(name)
        elif sign(outcome) == "no":
            lines[str(outcome.tegula)].append(name)
        elif sign(outcome) in ("sdpa", "WRONG"):
            lines[f"error {figure(outcome.tegula)}; sdpa {figure(outcome.sdpa)}"].append(name)
    for names, reason in BECAUSE.items():
        if found.model_type in names.split() and lines:
            lines[reason].append("because")
    if found.calls and found.matters < MATTERS:
        lines[f"attention matters little here: equal weights change results by {found.matters:.1g}"].append("forward")
    return [f"- {found.model_type}, {', '.join(names)}: {text}" for text, names in lines.items()]


def figure(value: float | str | None) -> str:
    return f"{value:.1g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
