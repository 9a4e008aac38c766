"""Tokenizer files that would fill the memory or never end are refused before any of their rules runs."""

import base64
import json
import os
import time

import pytest

from bothways.errors import CorruptCheckpoint
from bothways.families import FAMILIES
from bothways.text import TextTokenizer
from bothways.text.building import MAX_EXPANSION
from tiny_models import write_tokenizer

DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}


def replaced(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def normalizers(*steps):
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


def charsmap(text):
    """A compiled map whose table has one text that a character may become."""
    trie = bytes(4 * 1024)  # nothing is mapped
    packed = len(trie).to_bytes(4, "little") + trie + text.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(packed).decode()}


def template(*pieces):
    return [{"Sequence": {"id": piece, "type_id": 0}} for piece in pieces]


@pytest.fixture
def folder(tmp_path):
    write_tokenizer(tmp_path, "bert")
    return tmp_path


def opened(folder, changes, spell=lambda text: text):
    path = folder / "tokenizer.json"
    path.write_text(spell(json.dumps(json.loads(path.read_text()) | changes)))
    return TextTokenizer.from_folder(folder, FAMILIES["bert"].tokenizer)


GROWING = {
    "a letter to ten million": normalizers(replaced({"String": "a"}, "b" * 10_000_000)),
    "36 doublings": normalizers(*[DOUBLING] * 36),
    "36 nested doublings": {"normalizer": normalizers(*[normalizers(*[DOUBLING] * 6)["normalizer"]] * 6)["normalizer"]},
    "between all characters": normalizers(replaced({"String": ""}, "b" * 1000)),
    "by a regular expression": normalizers(replaced({"Regex": "x*"}, "b" * 1000)),
    "before every text": normalizers({"type": "Prepend", "prepend": "b" * 1000}),
    "by a compiled map": normalizers(charsmap("b" * 1000)),
    "bytes of bytes": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 36}},
    "normalized, then cut": normalizers(*[DOUBLING] * 7) | {"pre_tokenizer": BYTES},
    "decoded": {"decoder": {"type": "Sequence", "decoders": [DOUBLING] * 36}},
    "added tokens": normalizers(*[DOUBLING] * 36) | {"added_tokens": [{"id": 61, "content": "a b", **ADDED}]},
}


@pytest.mark.parametrize("changes", GROWING.values(), ids=GROWING)
def test_rules_that_grow_are_refused_before_they_run(folder, changes):
    started = time.monotonic()
    with pytest.raises(CorruptCheckpoint, match=f"may turn one character into more than {MAX_EXPANSION}"):
        opened(folder, changes)
    assert time.monotonic() - started < 5


def test_a_growing_normalizer_is_found_under_an_escaped_name(folder):
    with pytest.raises(CorruptCheckpoint, match="one character into more than"):
        opened(folder, GROWING["added tokens"], lambda text: text.replace('"normalizer"', '"\\u006eormalizer"'))


def test_a_template_that_repeats_a_text_is_refused(folder):
    processor = {"type": "TemplateProcessing", "pair": template("A", "B"), "special_tokens": {}}
    with pytest.raises(CorruptCheckpoint, match="its template repeats a text"):
        opened(folder, {"post_processor": processor | {"single": template(*"AA")}})


def test_rules_of_published_tokenizers_are_kept(folder):
    steps = [replaced({"Regex": " {2,}"}, " "), charsmap("b" * 18), {"type": "NFKC"}]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    tokenizer = opened(folder, normalizers(*steps) | {"pre_tokenizer": metaspace})
    assert tokenizer.encode(["w5  w6"], max_length=9)[0].windows


def test_padding_to_a_billion_tokens_is_not_done_while_the_file_is_read(folder):
    fixed = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
    started = time.monotonic()
    opened(folder, {"padding": fixed | {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}})
    assert time.monotonic() - started < 5


def test_thousands_of_added_tokens_are_read_in_one_call(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    added = {f"<x{number}>": 6 + number for number in range(5000)}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    started = time.monotonic()
    tokenizer = TextTokenizer.from_folder(folder, FAMILIES["bert"].tokenizer)
    assert time.monotonic() - started < 5
    assert len(tokenizer.vocabulary()) == 5006


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_pipe_in_place_of_a_tokenizer_file_is_refused(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CorruptCheckpoint, match="a pipe or a device"):
        TextTokenizer.from_folder(folder, FAMILIES["bert"].tokenizer)


def test_an_id_of_5000_digits_is_refused(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"1" * 5000: {"content": "x"}}}))
    with pytest.raises(CorruptCheckpoint, match="added_tokens_decoder"):
        TextTokenizer.from_folder(folder, FAMILIES["bert"].tokenizer)
