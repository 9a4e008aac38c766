"""Token shards: nothing is lost or doubled, whatever is interrupted; pieces cover every document; damage is named."""

import json
import random

import numpy as np
import pytest

from bothways.data.shards import MANIFEST, ShardSource, TokenCorpus, write_shards, writing
from bothways.errors import InvalidInput, OutputExists
from bothways.text import TextTokenizer, recipes
from bothways.text.training import train_tokenizer, write_trained_tokenizer
from bothways.text.words import sentence_spans
from killing import died_before_file_event, killed_before_file_event

WORDS = [f"{start}{end}" for start in ("ba", "ko", "mi", "tu", "ren") for end in ("so", "li", "qua", "na")]


def document(number):
    draw = random.Random(number)
    sentences = [" ".join(draw.choices(WORDS, k=draw.randint(2, 12))).capitalize() + "." for _ in range(1 + number % 7)]
    return "\n".join(" ".join(sentences[at : at + 2]) for at in range(0, len(sentences), 2))


DOCUMENTS = [document(number) for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer(request, tmp_path_factory):
    kind = getattr(request, "param", "wordpiece")
    folder = tmp_path_factory.mktemp(kind)
    write_trained_tokenizer(train_tokenizer(DOCUMENTS, kind, 300), folder)
    return TextTokenizer.from_folder(folder, recipes.TRAINED)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Have several blocks in flight."""
    monkeypatch.setattr(writing, "_BLOCK_CHARACTERS", 500)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(DOCUMENTS[:25]))
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in DOCUMENTS[25:]))
    return folder


def write(data, output, tokenizer, shard_tokens=150, **options):
    source = ShardSource([data], **options)
    return write_shards(source, output, tokenizer, shard_tokens=shard_tokens, show_progress=False)


def documents_of(corpus):
    """Ids of every document, read straight from the files."""
    found = []
    for entry in corpus.manifest.shards:
        tokens, sentences, documents = (
            np.load(entry.path(corpus.folder, part)) for part in ("tokens", "sentences", "documents")
        )
        ends = sentences[documents - 1]
        found += [tokens[begin:end].tolist() for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    return found


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe", "unigram"], indirect=True)
def test_every_document_is_there_in_order_and_as_it_is_encoded_whole(tokenizer, data, tmp_path):
    manifest = write(data, tmp_path / "shards", tokenizer)
    corpus = TokenCorpus.open(tmp_path / "shards")
    assert corpus.manifest == manifest
    assert len(manifest.shards) > 3
    assert manifest.documents == 60
    assert manifest.sentences == sum(len(sentence_spans(each)) for each in DOCUMENTS)
    spelt = [tokenizer.decode(ids).split() for ids in documents_of(corpus)]
    assert spelt == [tokenizer.decode(tokenizer.encode_bare([each])[0]).split() for each in DOCUMENTS]
    assert sum(manifest.lengths.up_to) == 60
    assert manifest.lengths.longest == max(map(len, documents_of(corpus)))
    assert corpus.manifest.dtype == "uint16"


@pytest.mark.parametrize("longest", [1, 7, 30, 10_000])
def test_pieces_are_whole_sentences_of_one_document_and_cover_everything_once(tokenizer, data, tmp_path, longest):
    write(data, tmp_path / "shards", tokenizer)
    corpus = TokenCorpus.open(tmp_path / "shards")
    pieces = corpus.pieces(longest)
    read = [
        corpus.tokens(*each).tolist()
        for each in zip(pieces.shard_P.tolist(), pieces.begin_P.tolist(), pieces.length_P.tolist(), strict=True)
    ]
    assert all(0 < len(each) <= longest for each in read)
    documents = documents_of(corpus)
    assert [one for each in read for one in each] == [one for each in documents for one in each]
    bounds = set(np.cumsum([len(each) for each in documents]).tolist())
    assert bounds <= set(np.cumsum([len(each) for each in read]).tolist())
    groups = [
        int(pieces.length_P[begin:end].sum()) for begin, end in zip(pieces.groups, pieces.groups[1:], strict=False)
    ]
    assert max(groups) <= longest
    # None could take in the piece that follows it.
    following = pieces.length_P[pieces.groups[1:-1]].tolist()
    assert all(group + piece > longest for group, piece in zip(groups[:-1], following, strict=True))
    assert pieces.groups[-1] == len(read)
    if longest == 10_000:
        assert len(read) == 60


def test_sentence_ends_of_a_piece_are_those_of_the_text(tokenizer, data, tmp_path):
    write(data, tmp_path / "shards", tokenizer, shard_tokens=10_000)
    corpus = TokenCorpus.open(tmp_path / "shards")
    pieces = corpus.pieces(10_000)
    for number, text in enumerate(DOCUMENTS):
        ends = corpus.sentence_ends(0, int(pieces.begin_P[number]), int(pieces.length_P[number]))
        assert len(ends) == len(sentence_spans(text))
        assert ends[-1] == pieces.length_P[number]
    cut = corpus.sentence_ends(0, 1, 3)
    assert cut[-1] == 3


def test_texts_that_came_before_are_left_out_unless_they_are_wanted(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join([*DOCUMENTS[:5], *DOCUMENTS[2:8], DOCUMENTS[0]]))
    once = write(tmp_path / "a.txt", tmp_path / "once", tokenizer, shard_tokens=20)
    assert (once.documents, once.duplicates) == (8, 4)
    twice = write(tmp_path / "a.txt", tmp_path / "twice", tokenizer, deduplicate=False)
    assert (twice.documents, twice.duplicates) == (12, 0)


def test_special_tokens_that_a_text_spells_out_are_no_tokens_of_it(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("[CLS] baso [SEP] koli.\n\n[MASK]\n\n[PAD] tuna.")
    write(tmp_path / "a.txt", tmp_path / "shards", tokenizer)
    corpus = TokenCorpus.open(tmp_path / "shards")
    found = documents_of(corpus)
    assert len(found) == 2
    assert not set().union(*found) & {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id}
    assert corpus.sentence_ends(0, 0, len(found[0])).tolist() == [len(found[0])]


@pytest.mark.parametrize(
    ("number", "die"),
    [*((number, died_before_file_event) for number in (*range(1, 60, 7), 90, 130)), (33, killed_before_file_event)],
)
def test_a_run_that_is_killed_is_continued_to_the_same_shards(tokenizer, data, tmp_path, number, die):
    write(data, tmp_path / "whole", tokenizer)
    die(number, lambda: write(data, tmp_path / "shards", tokenizer))
    write(data, tmp_path / "other", tokenizer)
    if not (tmp_path / "shards").exists():
        write(data, tmp_path / "shards", tokenizer)
    for folder in ("shards", "other"):
        names = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())
        assert all(
            (tmp_path / folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names
        )
        assert not (tmp_path / f"{folder}.partial").exists()


def broken_off(data, output, tokenizer, **options):
    """Begin to write, and meet a row without text behind the first shards."""
    (data / "c.jsonl").write_text('{"body": "none"}\n')
    with pytest.raises(InvalidInput, match="line 1 of"):
        write(data, output, tokenizer, **options)
    (data / "c.jsonl").unlink()
    assert (output.with_name(f"{output.name}.partial") / "state.json").exists()
    assert not output.exists()


def test_an_error_in_the_data_leaves_what_is_whole_to_be_continued(tokenizer, data, tmp_path):
    broken_off(data, tmp_path / "shards", tokenizer)
    write(data, tmp_path / "shards", tokenizer)
    write(data, tmp_path / "whole", tokenizer)
    assert (tmp_path / "shards" / MANIFEST).read_bytes() == (tmp_path / "whole" / MANIFEST).read_bytes()


def test_an_unfinished_run_of_other_settings_or_files_is_not_continued(tokenizer, data, tmp_path):
    broken_off(data, tmp_path / "shards", tokenizer)
    with pytest.raises(InvalidInput, match="an unfinished run that differs in shard_tokens: remove that folder"):
        write(data, tmp_path / "shards", tokenizer, shard_tokens=99)
    (data / "a.txt").rename(data / "z.txt")
    with pytest.raises(InvalidInput, match="the files have changed since"):
        write(data, tmp_path / "shards", tokenizer)


def test_a_damaged_or_missing_file_is_named(tokenizer, data, tmp_path):
    write(data, tmp_path / "shards", tokenizer)
    path = tmp_path / "shards" / "00002.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"00002\.tokens\.npy' is damaged"):
        TokenCorpus.open(tmp_path / "shards")
    path.unlink()
    with pytest.raises(InvalidInput, match=r"lacks '00002\.tokens\.npy'"):
        TokenCorpus.open(tmp_path / "shards", verify=False)


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 7}'])
def test_a_manifest_that_is_none_is_refused(tmp_path, content):
    with pytest.raises(InvalidInput, match="expected a folder of token shards"):
        TokenCorpus.open(tmp_path)
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InvalidInput, match="rite the shards again"):
        TokenCorpus.open(tmp_path)


def test_shards_of_another_tokenizer_are_refused(data, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, lowercase in zip(folders, (True, False), strict=True):
        write_trained_tokenizer(train_tokenizer(DOCUMENTS, "wordpiece", 300, lowercase=lowercase), folder)
    one, two = (TextTokenizer.from_folder(folder, recipes.TRAINED) for folder in folders)
    write(data, tmp_path / "shards", one)
    corpus = TokenCorpus.open(tmp_path / "shards")
    corpus.check_tokenizer(one)
    corpus.check_tokenizer(one.with_template(recipes.XLNET.template))
    with pytest.raises(InvalidInput, match="written with another tokenizer"):
        corpus.check_tokenizer(two)


def test_an_output_is_replaced_only_on_request_and_an_empty_corpus_refused(tokenizer, data, tmp_path):
    write(data, tmp_path / "shards", tokenizer)
    with pytest.raises(OutputExists):
        write(data, tmp_path / "shards", tokenizer)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InvalidInput, match="there is no text to write"):
        write(tmp_path / "empty.txt", tmp_path / "none", tokenizer)
    assert not (tmp_path / "none").exists()
