"""Folders of sentence-transformers: tiny encoders with real subwords, behind which any modules stand."""

import functools
import json
import shutil
from dataclasses import dataclass, field

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from bothways.families import FAMILIES
from contract_cases import tiny_settings

HIDDEN, LONGEST = 24, 40
TEXTS = [
    "The cat sat on the mat.",
    "a",
    " A cat was SITTING on a Mat, and the rain fell ",
    "Where can I pay? 東京 naïve [MASK] !?",
    "Several words of a long text about cats, mats and rain: " * 4,
]
SHORT, LONG = "query: ", "Represent this Text for searching: "
PROMPTS = {"query": SHORT, "passage": "passage: ", "long": LONG, "none": ""}
CORPUS = [*TEXTS, *PROMPTS.values(), "to pay for the mat in the city", "where the rain was falling"] * 3

POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
OLD_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclass(frozen=True)
class Folder:
    """Settings of a folder that sentence-transformers saves; ``behind`` names modules behind the pooling."""

    family: str = "bert"
    pooling: str | tuple[str, ...] = "mean"
    include_prompt: bool = True
    behind: tuple[object, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default: str | None = None
    truncate: int | None = None
    similarity: str | None = None
    max_length: int | None = None
    lowercase: bool = False

    @property
    def width(self):
        return HIDDEN * (1 if isinstance(self.pooling, str) else len(self.pooling))


@dataclass(frozen=True)
class Dense:
    """A dense module: its width, its activation by name, and whether it has a bias and a residual connection."""

    out: int
    activation: str = "Tanh"
    bias: bool = True
    residual: bool = False


def answers(model, names=(), texts=TEXTS):
    """Every way to embed texts with and without prompts; both libraries have the same methods."""
    found = {"plain": model.encode(texts), "a prompt": model.encode(texts, prompt="The cat: ")}
    if names:
        found |= {"query": model.encode_query(texts), "document": model.encode_document(texts)}
        found |= {"no prompt": model.encode(texts, prompt="")}
    return found | {f"named {name}": model.encode(texts, prompt_name=name) for name in names}


def sentence_transformer(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@functools.cache
def _transformer(source, max_length, lowercase):
    from sentence_transformers.base.modules import Transformer

    return Transformer(source, max_seq_length=max_length, do_lower_case=lowercase)


def save(settings, source, folder):
    """Let sentence-transformers save a folder with these settings; ``source`` is the folder of a bare encoder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [_transformer(str(source), settings.max_length, settings.lowercase)]
    modules.append(Pooling(HIDDEN, settings.pooling, include_prompt=settings.include_prompt))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        modules += _behind(settings.behind, settings.width)
    SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts=settings.prompts,
        default_prompt_name=settings.default,
        truncate_dim=settings.truncate,
        similarity_fn_name=settings.similarity,
    ).save(str(folder), create_model_card=False)
    return folder


def _behind(parts, width):
    from sentence_transformers.base.modules import Dense as TheirDense
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm

    made = []
    for part in parts:
        match part:
            case Dense(out, activation, bias, residual):
                act = getattr(torch.nn, activation)()
                made.append(TheirDense(width, out, bias, act, use_residual=residual))
                width = out
            case "normalize":
                made.append(Normalize())
            case "dropout":
                made.append(Dropout(0.5))
            case "layer_norm":
                norm = LayerNorm(width)
                torch.nn.init.normal_(norm.norm.weight, 1, 0.2)
                torch.nn.init.normal_(norm.norm.bias, 0, 0.2)
                made.append(norm)
    return made


def edit(path, changes):
    """Change keys of a JSON object, made if missing; a value of ... removes its key."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(exist_ok=True)
    kept = {key: value for key, value in (content | changes).items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


def write_old(source, folder, modules, files, weights="model.safetensors"):
    """Write the files of a release around an encoder by hand: ``modules`` by path, and JSON objects by path."""
    shutil.copytree(source, folder)
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(modules.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    for path, content in files.items():
        edit(folder / path, content)
    for path in modules:
        if path.endswith("Dense"):
            write_dense(folder / path, weights)
    return folder


def write_dense(folder, name="model.safetensors", **changes):
    """Write random weights that fit the settings of a dense module, in 16 bits or in the pickle of older releases."""
    settings = json.loads((folder / "config.json").read_text())
    generator = torch.Generator().manual_seed(1)
    shapes = {"linear.weight": (settings["out_features"], settings["in_features"])}
    if settings.get("bias", True):
        shapes["linear.bias"] = shapes["linear.weight"][:1]
    tensors = {key: torch.randn(shape, generator=generator) for key, shape in (shapes | changes).items() if shape}
    if name.endswith(".bin"):
        torch.save(tensors, folder / name)
    else:
        save_file({key: tensor.half() for key, tensor in tensors.items()}, folder / name)


# --- encoders ---


def write_encoder(folder, family):
    """Write a bare encoder with fresh weights that transformers saved, and a tokenizer of real subwords."""
    import transformers

    trained = _trained(family)
    sizes = {"vocab_size": trained.get_vocab_size()}
    if family != "xlnet":
        sizes["max_position_embeddings"] = LONGEST + (2 if family == "roberta" else 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = tiny_settings(family, initializer_range=0.2, **sizes)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    special = FAMILIES[family].tokenizer.special
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained,
        padding_side="left" if family == "xlnet" else "right",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **({} if family == "xlnet" else {"model_max_length": LONGEST}),
        **{f"{role}_token": token.content for role, token in special.named().items()},
    ).save_pretrained(folder)
    return folder


def _trained(family):
    """A cased tokenizer of the family's kind, trained on a few texts."""
    special, template = FAMILIES[family].tokenizer.special, FAMILIES[family].tokenizer.template
    names = [special.pad, special.cls, special.sep, special.unk, special.mask]
    if family == "roberta":
        names[:2] = names[1::-1]
    names = [token.content for token in names]
    unknown = special.unk.content
    if family == "bert":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token=unknown))
        made.normalizer = normalizers.BertNormalizer(lowercase=False)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=130, special_tokens=names, show_progress=False)
    elif family in ("xlnet", "deberta-v2"):
        made = tokenizers.Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=110, special_tokens=names, unk_token=unknown, show_progress=False)
    else:
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=names, initial_alphabet=alphabet, show_progress=False
        )
    made.train_from_iterator(CORPUS, trainer)
    tokens = {"cls": special.cls.content, "sep": special.sep.content}

    def spelt(items):
        return [":".join([tokens.get(part, part), kind]) for part, kind in (item.split(":") for item in items)]

    made.post_processor = processors.TemplateProcessing(
        single=spelt(template.single),
        pair=spelt(template.pair),
        special_tokens=[(token, made.token_to_id(token)) for token in tokens.values()],
    )
    return made
