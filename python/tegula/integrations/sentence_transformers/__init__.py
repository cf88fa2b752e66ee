"""tegula inside sentence-transformers: one line, and a model encodes without padding.

    model = SentenceTransformer("all-MiniLM-L6-v2")
    pack(model)
    embeddings = model.encode(sentences, show_progress_bar=True)

The library pads each batch of sentences to its longest one, and computes the padding. A packed model
puts the sentences of a batch one behind the other in a single row, whose mask keeps them apart.
"""

from __future__ import annotations

from typing import Any, TypeVar

try:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Normalize, Pooling
except ImportError as error:
    raise ModuleNotFoundError(
        "tegula.integrations.sentence_transformers needs sentence-transformers >= 6: pip install sentence-transformers",
        name="sentence_transformers",
    ) from error

from .architectures import architecture_of
from .packed_forward import PackedForward

__all__ = ["pack", "unpack"]

Model = TypeVar("Model", bound=SentenceTransformer)

# Modules that read no embedding of padding; subclasses may.
FOLLOWING = (Dense, Dropout, LayerNorm, Normalize, Pooling)


def pack(model: Model) -> Model:
    """Make a sentence encoder compute its batches without padding.

    Everything that ends in the model's forward pass is packed from then on: `encode`, `encode_query`,
    `encode_document`, and training, whose gradients pass through. Arguments, results, order, prompts,
    progress bar and batches are the library's own. A batch of `batch_size` sentences is one row.

    Parameters
    ----------
    model : SentenceTransformer
        A Transformer module with one of the models BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT,
        MPNet or ModernBERT, on the CPU; after it any of Pooling, Dense, Normalize, LayerNorm, Dropout.
        It is changed: its forward pass, and but for MPNet the name of its attention, "tegula". Weights,
        and what `save` writes, stay as they are. Packing a packed model changes nothing.

    Returns
    -------
    SentenceTransformer
        The same model.

    Raises
    ------
    TypeError
        When `model` is no SentenceTransformer.
    ValueError
        For other architectures and modules, and models on other devices.

    Notes
    -----
    A batch that cannot be packed, because its attention mask has gaps or the model is to return hidden
    states, is computed as before, with one warning.

    Examples
    --------
    >>> from sentence_transformers import SentenceTransformer
    >>> from tegula.integrations.sentence_transformers import pack
    >>> model = pack(SentenceTransformer("all-MiniLM-L6-v2"))  # doctest: +SKIP
    >>> model.encode(["A sentence.", "Another one, longer than the first."]).shape  # doctest: +SKIP
    (2, 384)
    """
    transformer = transformer_of(model)
    if not isinstance(vars(transformer).get("forward"), PackedForward):
        architecture = architecture_of(transformer.auto_model)
        for name, module in list(model.named_children())[1:]:
            if type(module) not in FOLLOWING:
                known = ", ".join(sorted(found.__name__ for found in FOLLOWING))
                raise ValueError(
                    f"module {name} of the model is {type(module).__name__}; pack knows {known}. "
                    "Use the model without pack."
                )
        transformer.forward = PackedForward(transformer, architecture)
    return model


def unpack(model: Model) -> Model:
    """Undo `pack`: the model computes as it did before.

    Parameters
    ----------
    model : SentenceTransformer
        Packed or not.

    Returns
    -------
    SentenceTransformer
        The same model.

    Raises
    ------
    TypeError
        When `model` is no SentenceTransformer.
    ValueError
        When it is one that `pack` refuses for its first module.
    """
    packed = vars(transformer_of(model)).get("forward")
    if isinstance(packed, PackedForward):
        packed.undo()
    return model


def transformer_of(model: SentenceTransformer) -> Transformer:
    """The module that holds the encoder."""
    if not isinstance(model, SentenceTransformer):
        raise TypeError(f"model must be a SentenceTransformer, got {type(model).__name__}")
    first: Any = next(iter(model.children()), None)
    if type(first) is not Transformer or first.module_output_name != "token_embeddings":
        raise ValueError(
            f"the model begins with {type(first).__name__}, expected a Transformer that makes token embeddings. "
            "Use the model without pack."
        )
    return first
