"""One tiny configuration for each family, and small things that the tests of the core build from them.

Every size differs from every other, so that a swapped dimension cannot pass unseen.
"""

import json

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import models, pre_tokenizers, processors

from bothways.encoder import Encoder, Pooler
from bothways.encoder.attention import SelfAttention
from bothways.encoder.heads import new_head
from bothways.encoder.modules import Dropout
from bothways.encoder.streams import VISIBLE
from bothways.families import FAMILIES
from bothways.families.layout import write_weights
from bothways.packing import pack

VOCABULARY = 61
FIRST_WORD = 5  # ids below are special tokens

_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 18,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_ROBERTA = _BERT | {
    "max_position_embeddings": 20,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_DEBERTA = {name: value for name, value in _BERT.items() if name not in ("type_vocab_size", "layer_norm_eps")} | {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 12,
    "position_biased_input": False,
}

TINY = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA | {"type_vocab_size": 2, "hidden_act": "gelu_new"},
    "camembert": _ROBERTA | {"num_hidden_layers": 2},
    "distilbert": {
        "vocab_size": VOCABULARY,
        "dim": 24,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 37,
        "max_position_embeddings": 18,
        "pad_token_id": 0,
    },
    "electra": _BERT | {"embedding_size": 14},
    # Two groups of two layers each over four steps: every part of the sharing is used.
    "albert": _BERT
    | {
        "embedding_size": 14,
        "num_hidden_layers": 4,
        "num_hidden_groups": 2,
        "inner_group_num": 2,
        "hidden_act": "gelu_new",
    },
    "deberta": _DEBERTA | {"type_vocab_size": 2, "position_biased_input": True},
    # Far distances share rows, the table is normed, and a convolution stands beside the first layer.
    "deberta-v2": _DEBERTA
    | {
        "position_buckets": 6,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "conv_act": "gelu",
        "embedding_size": 24,
    },
    "xlnet": {
        "vocab_size": VOCABULARY,
        "d_model": 24,
        "n_layer": 3,
        "n_head": 4,
        "d_inner": 37,
        "pad_token_id": 0,
    },
    # One global layer between local ones, and a window that hides most of the longest text.
    "modernbert": {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 37,
        "max_position_embeddings": 18,
        "local_attention": 6,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
    },
}


def every_family(test):
    """Run a test for each family of the registry. One that has no tiny configuration here fails, and is not skipped."""
    import pytest

    return pytest.mark.parametrize("model_type", FAMILIES)(test)


# Attention backends of a CPU by the kind of attention; tests/encoder/test_encoder_backends.py compares the models' own.
_PLAIN, _RELATIVE, _LOCAL = (
    ("sdpa", "grouped", "padded", "reference"),
    ("padded", "skewed", "reference"),
    ("padded", "reference"),
)
_OTHERS = {"deberta": _RELATIVE, "deberta-v2": _RELATIVE, "xlnet": _RELATIVE, "modernbert": _LOCAL}


def backends_of(model_type):
    """Names of the attention backends that a CPU has for a family's tiny model, and None for the chosen ones."""
    return [None, *_OTHERS.get(model_type, _PLAIN)]


def every_family_and_backend(test):
    """Run a test for each family of the registry with each attention backend that serves it on a CPU."""
    import pytest

    pairs = [(model_type, backend) for model_type in FAMILIES for backend in backends_of(model_type)]
    return pytest.mark.parametrize(("model_type", "backend"), pairs)(test)


def tiny_config(model_type):
    """The encoder configuration of a family's tiny model."""
    return FAMILIES[model_type].config(TINY[model_type])


def scramble(module, seed=0, spread=0.3):
    """Give every parameter values of its own: fresh biases of zero and norms of one would hide a swap."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm_weight = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if norm_weight else spread * noise)
    return module.eval()


def tiny_encoder(model_type="bert", seed=0, dtype=torch.float32):
    """A scrambled tiny encoder in evaluation mode."""
    return scramble(Encoder(tiny_config(model_type)), seed).to(dtype)


def switch_off_dropout(monkeypatch):
    """Let every part that drops elements compute as outside training, and check that nothing is dropped any more."""
    for part in (Dropout, SelfAttention):
        monkeypatch.setattr(part, "training", property(lambda _: False, lambda *_: None), raising=False)
    encoder, packed = tiny_encoder(), pack(random_ids((7, 4)))
    assert encoder.config.dropout.attention
    assert encoder.config.dropout.hidden
    with torch.no_grad():
        assert torch.equal(encoder.train()(packed), encoder.eval()(packed))


def random_ids(lengths, seed=0, vocabulary=VOCABULARY):
    """Lists of token ids, none of them a special token."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(FIRST_WORD, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def random_types(lengths):
    """Segment ids: the first half of each sequence is the first text of a pair."""
    return [[int(2 * place >= length) for place in range(length)] for length in lengths]


def order_of(length, seed=0):
    """Places of half of the tokens in a random order; the others are visible."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, length // 2)
    order = torch.full((length,), VISIBLE)
    order[torch.randperm(length, generator=generator)[:count]] = torch.randperm(count, generator=generator)
    return order


def targets_of(orders):
    """The arguments of `Encoder.queries` for the orders of sequences: rows and counts of the targets, all places."""
    order_T = torch.cat(orders)
    return (order_T >= 0).nonzero().flatten(), tuple(int((each >= 0).sum()) for each in orders), order_T


def padded(sequences, side, fill):
    """Token ids (B, S) and their attention mask, padded on one side."""
    longest = max(map(len, sequences))
    ids_BS = torch.full((len(sequences), longest), fill)
    mask_BS = torch.zeros_like(ids_BS)
    for row, sequence in enumerate(sequences):
        columns = slice(0, len(sequence)) if side == "right" else slice(longest - len(sequence), longest)
        ids_BS[row, columns] = torch.tensor(sequence)
        mask_BS[row, columns] = 1
    return ids_BS, mask_BS


def write_tokenizer(folder, model_type):
    """Write a tokenizer.json that knows the words w5, w6, ... as the ids 5, 6, ..."""
    special = FAMILIES[model_type].tokenizer.special
    names = [special.pad, special.cls, special.sep, special.unk, special.mask]
    if TINY[model_type]["pad_token_id"] == 1:
        names[:2] = names[1::-1]
    words = [token.content for token in names] + [f"w{number}" for number in range(FIRST_WORD, VOCABULARY)]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=special.unk.content))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = {"cls": special.cls.content, "sep": special.sep.content}
    template = FAMILIES[model_type].tokenizer.template

    def spelt(items):
        return [":".join([tokens.get(part, part), kind]) for part, kind in (item.split(":") for item in items)]

    tokenizer.post_processor = processors.TemplateProcessing(
        single=spelt(template.single),
        pair=spelt(template.pair),
        special_tokens=[(token, ids[token]) for token in tokens.values()],
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def write_checkpoint(folder, model_type="bert", seed=0, architecture=None):
    """Write a tiny checkpoint and return its tensors by stored name.

    It is that of a bare encoder, with a pooler where the family trained one, or of an architecture with heads, of which
    those with labels have three.

    Only the names come from this package; the files are written with ``json`` and ``safetensors`` alone.
    """
    family, config = FAMILIES[model_type], tiny_config(model_type)
    weights = tiny_encoder(model_type, seed).state_dict()
    if architecture is None and family.pooler_training is not None:
        pooler = scramble(Pooler(config), seed + 1)
        weights |= {f"pooler.{name}": value for name, value in pooler.state_dict().items()}
    tensors = write_weights(family.rows, config, weights, "" if architecture is None else family.prefix)
    for name in family.architectures.get(architecture, ()):
        stored = family.head(name, TINY[model_type])
        head = scramble(new_head(config, stored.kind, labels=3), seed + 2).state_dict()
        tensors |= write_weights(stored.rows, config, {f"head.{key}": value for key, value in head.items()})
    folder.mkdir(parents=True, exist_ok=True)
    named = architecture or family.base_architecture
    settings = {"model_type": model_type, "architectures": [named], **TINY[model_type]}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, model_type)
    return tensors


def edit_config(folder, **changes):
    """Change settings in a folder's config.json; None takes one out."""
    path = folder / "config.json"
    settings = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}), encoding="utf-8")
