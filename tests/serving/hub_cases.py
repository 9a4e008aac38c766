"""Tiny models as other programs save them, with words of several tokens, and one that overflows for a word."""

import json

import tokenizers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, processors

from classifier_cases import without_dropout
from contract_cases import pair_rows
from task_cases import fitted
from tiny_models import edit_config, write_checkpoint

ENTAILING = {"ant": "contradiction", "bee": "neutral", "cow": "entailment"}
HUB = {
    "ner": ("BertForTokenClassification", ("O", "B-PER", "I-PER")),
    "nli": ("BertForSequenceClassification", tuple(ENTAILING.values())),
    "mlm": ("BertForMaskedLM", ()),
    "qa": ("BertForQuestionAnswering", ()),
    "encoder": (None, ()),
}
BAD = "w9"
"""The word for which a model of `overflowing` computes NaN."""


def let_client_call(monkeypatch):
    """Let the client of the hub call a server of this machine; it asks the hub for nothing."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)


def write_hub_model(folder, name):
    """A model without files of this package; words end in pieces of one letter, from ##a to ##u."""
    architecture, labels = HUB[name]
    write_checkpoint(folder, architecture=architecture)
    without_dropout(folder)
    if labels:
        numbered = {str(number): label for number, label in enumerate(labels)}
        edit_config(folder, id2label=numbered, label2id={label: int(number) for number, label in numbered.items()})
    path = folder / "tokenizer.json"
    names = list(json.loads(path.read_text())["model"]["vocab"])
    names[40:] = [f"##{chr(ord('a') + number)}" for number in range(len(names) - 40)]
    ids = {name: number for number, name in enumerate(names)}
    made = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    made.save(str(path))
    return folder


def write_reranker(folder, **settings):
    """A model of another program with a single output, and further settings in its config.json."""
    write_checkpoint(folder, architecture="BertForSequenceClassification")
    without_dropout(folder)
    weights = load_file(folder / "model.safetensors")
    one = {name: value[:1].clone() if name.startswith("classifier.") else value for name, value in weights.items()}
    save_file(one, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, **({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}} | settings))
    return folder


def overflowing(folder, name):
    """A model whose numbers overflow for one word; models with NaN in their weights are not opened."""
    write_hub_model(folder, name)
    weights = load_file(folder / "model.safetensors")
    (words,) = (value for key, value in weights.items() if key.endswith("word_embeddings.weight"))
    words[int(BAD[1:])] = 3e38
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def entailing(base, folder):
    """A trained classifier of pairs, whose labels are those of entailment."""
    made = [{**row, "label": ENTAILING[row["label"]]} for row in pair_rows("single", 24)]
    fitted(base, "pairs", made, made[:12]).save(folder, golden=None)
    return folder
