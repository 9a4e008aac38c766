"""Tokenizers from SentencePiece files: windows, saving, and what is refused."""

import sys

import pytest
from piece_files import FAMILIES, opened, train
from test_text_oracle import assert_same, pairs_of, save_and_open
from text_samples import ADVERSARIAL, random_texts

from bothways.errors import CorruptCheckpoint, MissingDependency, UnsupportedConfig

pytest.importorskip("transformers")
pytest.importorskip("sentencepiece", reason="the extra spm is not installed")

NO_LIMIT = 10**9


def test_xlnets_special_tokens_end_every_window(tmp_path):
    train(tmp_path, "xlnet")
    tokenizer = opened(tmp_path, "xlnet")
    first, second = "The cabinet met.", "Voters gave the government a second term after a long campaign in the north."
    single, pair = tokenizer.encode([second, (first, second)], max_length=24, stride=3, offsets=True)
    assert len(single.windows) > 1 < len(pair.windows)
    end = [tokenizer.sep_id, tokenizer.cls_id]
    for window in single.windows:
        assert window.ids[-2:] == end
        assert window.types == [0] * (len(window.ids) - 1) + [2]
        assert window.offsets[-2:] == [(0, 0), (0, 0)]
        assert window.sequences[-2:] == [None, None]
        assert all(number not in end for number in window.ids[:-2])
    head = tokenizer.encode([first], max_length=99)[0].windows[0].ids[:-1]
    for window in pair.windows:
        assert window.ids[: len(head)] == head
        assert window.ids[-2:] == end
        assert window.types == [0] * len(head) + [1] * (len(window.ids) - len(head) - 1) + [2]
    for windows, skipped in ((single.windows, 0), (pair.windows, len(head))):
        whole = tokenizer.encode([second], max_length=NO_LIMIT, offsets=True)[0].windows[0]
        spans = {span for window in windows for span in window.offsets[skipped:-2]}
        assert spans == set(whole.offsets[:-2])


@pytest.mark.parametrize(
    ("family", "options"),
    [(family, {}) for family in FAMILIES]
    + [("deberta-v2", {"byte_fallback": True}), ("albert", {"model_type": "bpe"})],
    ids=str,
)
def test_a_saved_tokenizer_opens_in_transformers_and_here(tmp_path, family, options):
    train(tmp_path, family, **options)
    (tmp_path / "tokenizer_config.json").unlink()
    ours = opened(tmp_path, family)
    saved = tmp_path / "saved"
    theirs = save_and_open(ours, saved, family)
    assert_same(ours, theirs, ADVERSARIAL + random_texts(50))
    assert_same(ours, theirs, pairs_of(ADVERSARIAL))
    assert_same(opened(saved, family), theirs, ADVERSARIAL)
    assert theirs.padding_side == ("left" if family == "xlnet" else "right")
    file = FAMILIES[family].file
    assert (saved / file).read_bytes() == (tmp_path / file).read_bytes()


@pytest.mark.parametrize("absent", ["sentencepiece", "google.protobuf.message"])
def test_without_the_extra_the_install_line_is_given(tmp_path, monkeypatch, absent):
    train(tmp_path, "albert")
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingDependency, match=r"spiece\.model.*pip install 'bothways\[spm\]'"):
        opened(tmp_path, "albert")


def altered(folder, family, change) -> None:
    from sentencepiece import sentencepiece_model_pb2

    path = folder / FAMILIES[family].file
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    change(proto)
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    "change",
    [
        lambda proto: proto.ClearField("pieces"),
        lambda proto: setattr(proto.trainer_spec, "unk_id", 5000),
        lambda proto: setattr(proto.trainer_spec, "unk_id", -1),
        lambda proto: setattr(proto.pieces[40], "score", float("nan")),
        lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", b"no map"),
    ],
    ids=["no pieces", "unknown beyond the pieces", "no unknown", "no score", "no character map"],
)
def test_altered_files_are_refused(tmp_path, change):
    train(tmp_path, "albert")
    altered(tmp_path, "albert", change)
    with pytest.raises(CorruptCheckpoint, match=r"spiece\.model"):
        opened(tmp_path, "albert")


@pytest.mark.parametrize("cut", [0, 10, 2000], ids=["empty", "beginning", "half"])
def test_truncated_files_are_refused(tmp_path, cut):
    train(tmp_path, "albert")
    path = tmp_path / "spiece.model"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptCheckpoint, match=r"spiece\.model"):
        opened(tmp_path, "albert")


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1", b"\xff" * 100, b"{}"])
def test_files_of_another_kind_are_refused(tmp_path, content):
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"spiece\.model"):
        opened(tmp_path, "albert")


def test_the_file_of_another_family_is_refused(tmp_path):
    train(tmp_path, "xlnet")
    with pytest.raises(CorruptCheckpoint, match=r"spiece\.model has no token '\[CLS\]'"):
        opened(tmp_path, "albert")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word"}, "model type 3"),
        ({"model_type": "char"}, "model type 4"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix=True"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix=False"),
        ({"model_type": "bpe", "user_defined_symbols": ("<ent>",)}, "user-defined"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(tmp_path, options, message):
    train(tmp_path, "xlm-roberta", **options)
    with pytest.raises(UnsupportedConfig, match=message):
        opened(tmp_path, "xlm-roberta")


@pytest.mark.parametrize("option", ["do_lower_case", "split_by_punct", "add_prefix_space"])
def test_a_setting_of_the_wrong_type_is_named(tmp_path, option):
    train(tmp_path, "deberta-v2", settings={option: "yes"})
    with pytest.raises(CorruptCheckpoint, match=f"{option}.*'yes'"):
        opened(tmp_path, "deberta-v2")
