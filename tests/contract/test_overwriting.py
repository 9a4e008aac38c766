"""Writers of the Python interface replace an output only on request, and a folder only by one of the same kind."""

import pytest

from bothways import SemanticSearch, SentenceEmbedder, load
from bothways.audit.provenance import write_manifest
from bothways.cli.program import main
from bothways.compose import record_answers
from bothways.data import write_rows
from bothways.data.shards import ShardSource, write_shards
from bothways.demo.examples import write_examples
from bothways.errors import OutputExists
from bothways.export import export
from bothways.quantization import quantize
from bothways.report import Page, write

TEXTS = [f"w{number} w{number + 1}" for number in range(20)]
ROWS = [{"text": text} for text in TEXTS]


def save_index(base, output, **given):
    SemanticSearch.build(SentenceEmbedder.from_pretrained(base, device="cpu"), TEXTS).save(output, **given)


def save_shards(base, output, **given):
    write_rows(output.parent / "texts.jsonl", ROWS, overwrite=True)
    write_shards(ShardSource([output.parent / "texts.jsonl"]), output, load(base).tokenizer, **given)


def train_tokenizer(base, output, *, overwrite=False):
    write_rows(output.parent / "texts.jsonl", ROWS, overwrite=True)
    words = ["--data", output.parent / "texts.jsonl", "--output", output, "--vocabulary", 64, "--quiet"]
    if main(["tokenizer", "train", *map(str, words), *["--overwrite"] * overwrite]):
        raise OutputExists("the command failed")


FOLDERS = {
    "encoder": lambda base, output, **given: load(base, device="cpu").save(output, golden=None, **given),
    "task": lambda base, output, **given: SentenceEmbedder.from_pretrained(base).save(output, golden=None, **given),
    "export": lambda base, output, **given: export(base, output, format="safetensors", **given),
    "int8": lambda base, output, **given: quantize(base, output, TEXTS, cosine=0.5, golden=None, **given),
    "index": save_index,
    "shards": save_shards,
    "tokenizer": train_tokenizer,
    "examples": lambda _, output, **given: write_examples(output, **given),
}
FILES = {
    "rows.jsonl": lambda _, output, **given: write_rows(output, ROWS, **given),
    "page.html": lambda _, output, **given: write(Page("title", "", ()), output, **given),
    "golden.json": lambda base, output, **given: record_answers(base, output, **given),
    "SHA256SUMS": lambda _, output, **given: write_manifest(output.parent, **given),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_replaced_on_request_and_only_if_it_is_of_the_same_kind(kind, tiny_bert, tmp_path):
    for name in ("other", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    for given in ({}, {"overwrite": True}):
        with pytest.raises(OutputExists):
            FOLDERS[kind](tiny_bert, tmp_path / "other", **given)
    FOLDERS[kind](tiny_bert, tmp_path / "new")  # an empty folder is as good as none
    with pytest.raises(OutputExists):
        FOLDERS[kind](tiny_bert, tmp_path / "new")
    FOLDERS[kind](tiny_bert, tmp_path / "new", overwrite=True)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_replaced_on_request(name, tiny_bert, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text("old")
    with pytest.raises(OutputExists, match=r"already exists.*overwrite=True"):
        FILES[name](tiny_bert, tmp_path / name)
    assert (tmp_path / name).read_text() == "old"
    FILES[name](tiny_bert, tmp_path / name, overwrite=True)
    assert (tmp_path / name).read_text() != "old"


def test_a_tokenizer_never_replaces_a_model(tiny_bert, tmp_path):
    load(tiny_bert).save(tmp_path / "model", golden=None)
    before = sorted(path.name for path in (tmp_path / "model").iterdir())
    with pytest.raises(OutputExists):
        train_tokenizer(tiny_bert, tmp_path / "model", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == before
