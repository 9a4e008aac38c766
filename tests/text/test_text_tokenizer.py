"""Windows lose nothing, settings never cut unseen, and what is wrong is said."""

import json
import random
import shutil
import string
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_samples import ADVERSARIAL, random_texts
from tokenizers import Tokenizer, models

from bothways.errors import CorruptCheckpoint, IncompatibleWeights, InvalidInput, TextTooLong, UnknownModel
from bothways.text import EncodedText, TextTokenizer, TokenizerFileOnly, WordPiece, recipes

NO_LIMIT = 10**9
ALPHABET = st.text(st.sampled_from("ab c.é\u0301你ض👍\u200d\n"), max_size=80)


@pytest.fixture(scope="module", params=["minilm", "roberta", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return request.getfixturevalue(request.param)


def whole(tokenizer: TextTokenizer, text):
    (window,) = tokenizer.encode([text], max_length=NO_LIMIT, offsets=True)[0].windows
    return window


def body(window, sequence: int) -> list[tuple[int, int, tuple[int, int], int | None]]:
    """The windowed tokens of one window, with everything that is known of each."""
    rows = zip(window.sequences, window.ids, window.types, window.offsets, window.words, strict=True)
    return [tuple(row[1:]) for row in rows if row[0] == sequence]


def assert_covers(encoded: EncodedText, full, sequence: int, max_length: int, stride: int | None) -> None:
    """Windows, laid end to end less their overlap, are the whole text."""
    expected = body(full, sequence)
    frame = len(full.ids) - len(expected)
    room = max_length - frame
    stride = room // 4 if stride is None else stride
    joined: list = []
    for number, window in enumerate(encoded.windows):
        assert len(window.ids) <= max_length
        assert len(window.ids) - len(body(window, sequence)) == frame
        if number:
            assert window.start == len(joined) - stride
            assert body(window, sequence)[:stride] == joined[-stride:] if stride else True
        joined = joined[: window.start] + body(window, sequence)
    assert joined == expected
    assert encoded.dropped_tokens == 0


@given(text=ALPHABET, max_length=st.integers(4, 40), data=st.data())
@settings(max_examples=150, deadline=None)
def test_windows_cover_every_token_of_a_text(tokenizer, text, max_length, data):
    room = max_length - 2
    stride = data.draw(st.none() | st.integers(0, room - 1))
    (encoded,) = tokenizer.encode([text], max_length=max_length, stride=stride, offsets=True)
    full = whole(tokenizer, text)
    assert encoded.tokens == len(full.ids) - 2
    assert_covers(encoded, full, 0, max_length, stride)


@given(first=ALPHABET, second=ALPHABET, max_length=st.integers(5, 60))
@settings(max_examples=150, deadline=None)
def test_windows_of_a_question_keep_it_and_cover_the_context(tokenizer, first, second, max_length):
    full = whole(tokenizer, (first, second))
    frame = len(full.ids) - len(body(full, 1))
    if len(full.ids) > max_length and frame >= max_length:
        with pytest.raises(TextTooLong, match=r"leaves no room .* the first must fit whole"):
            tokenizer.encode([(first, second)], max_length=max_length, cut="second")
        return
    (encoded,) = tokenizer.encode([(first, second)], max_length=max_length, offsets=True, cut="second")
    assert_covers(encoded, full, 1, max_length, None)
    assert all(body(window, 0) == body(full, 0) for window in encoded.windows)
    head = full.ids[: len(full.ids) - len(body(full, 1)) - 1]
    assert all(window.ids[: len(head)] == head and window.ids[-1] == full.ids[-1] for window in encoded.windows)


@given(first=ALPHABET, second=ALPHABET, max_length=st.integers(6, 60))
@settings(max_examples=150, deadline=None)
def test_windows_of_a_pair_hold_all_of_both_texts(tokenizer, first, second, max_length):
    full = whole(tokenizer, (first, second))
    bodies = [body(full, 0), body(full, 1)]
    special = len(full.ids) - sum(map(len, bodies))
    if len(full.ids) > max_length and max_length - special < 2 and all(bodies):
        with pytest.raises(TextTooLong, match="leaves no room for both"):
            tokenizer.encode([(first, second)], max_length=max_length)
        return
    (encoded,) = tokenizer.encode([(first, second)], max_length=max_length, offsets=True)
    assert encoded.dropped_tokens == 0
    parts = [[body(window, number) for window in encoded.windows] for number in (0, 1)]
    for window, *both in zip(encoded.windows, *parts, strict=True):
        assert len(window.ids) == special + sum(map(len, both)) <= max_length
        assert [body(window, None)[0], body(window, None)[-1]] == [body(full, None)[0], body(full, None)[-1]]
    shorter = min(map(len, bodies))
    for whole_body, of_windows in zip(bodies, parts, strict=True):
        apart = list(dict.fromkeys(map(tuple, of_windows)))
        assert {token for part in apart for token in part} == set(whole_body)
        if len(whole_body) == shorter <= (max_length - special) // 2:
            assert apart == [tuple(whole_body)]
    assert len(encoded.windows) == max(len(set(map(tuple, each))) for each in parts)
    (cut,) = tokenizer.encode([(first, second)], max_length=max_length, on_overflow="truncate", offsets=True)
    assert cut.windows == encoded.windows[:1]
    kept = sum(len(body(cut.windows[0], number)) for number in (0, 1))
    assert cut.dropped_tokens == sum(map(len, bodies)) - kept


def test_the_longer_text_of_a_pair_is_cut_as_transformers_does(minilm):
    for lengths, kept in (((30, 3), (14, 3)), ((3, 30), (3, 14)), ((30, 40), (8, 9)), ((10, 7), (10, 7))):
        pair = tuple(" ".join("a" * length) for length in lengths)
        (window,) = minilm.encode([pair], max_length=20, on_overflow="truncate", offsets=True)[0].windows
        assert tuple(len(body(window, number)) for number in (0, 1)) == kept


def test_windows_are_the_same_with_and_without_offsets(tokenizer):
    texts = [*ADVERSARIAL, *random_texts(200), ("a b", "c " * 90)]
    full = tokenizer.encode(texts, max_length=20, offsets=True)
    fast = tokenizer.encode(texts, max_length=20)
    for with_offsets, without in zip(full, fast, strict=True):
        assert (with_offsets.tokens, with_offsets.dropped_tokens) == (without.tokens, without.dropped_tokens)
        assert [(w.ids, w.types, w.start) for w in with_offsets.windows] == [
            (w.ids, w.types, w.start) for w in without.windows
        ]
        assert all(w.offsets is None and w.words is None and w.sequences is None for w in without.windows)


def test_offsets_point_into_the_original_text_in_every_window(minilm):
    text = "Ünïcode 👍🏽 wörds — 你好 CAFÉ " * 60
    (encoded,) = minilm.encode([text], max_length=32, offsets=True)
    assert len(encoded.windows) > 10
    for window in encoded.windows:
        for token, span in zip(minilm.tokens(window.ids), window.offsets, strict=True):
            if token in ("cafe", "##code", "你", "words"):
                assert text[slice(*span)] in ("CAFÉ", "code", "你", "wörds")
                assert text[slice(*span)].lower().translate({233: "e", 246: "o"}) == token.removeprefix("##")


def test_the_library_agrees_on_where_windows_lie(minilm, minilm_folder):
    library = Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(30, stride=7)
    text = " ".join(random_texts(40, seed=9))
    expected = library.encode(text)
    (encoded,) = minilm.encode([text], max_length=30, stride=7)
    assert [w.ids for w in encoded.windows] == [e.ids for e in [expected, *expected.overflowing]]


def test_truncate_keeps_the_first_window_and_counts_what_it_drops(tokenizer):
    text = "ba ko mi tu " * 50
    (cut,) = tokenizer.encode([text], max_length=20, on_overflow="truncate")
    (windowed,) = tokenizer.encode([text], max_length=20)
    assert cut.windows == windowed.windows[:1]
    assert cut.dropped_tokens == cut.tokens - 18 > 0
    (short,) = tokenizer.encode(["ba"], max_length=20, on_overflow="truncate")
    assert short.dropped_tokens == 0


def test_truncating_on_the_left_keeps_the_last_tokens(tokenizer):
    text = " ".join(random_texts(30, seed=4))
    whole, cut = (
        tokenizer.encode([text], max_length=size, on_overflow="truncate_left", offsets=True)[0] for size in (10**6, 20)
    )
    (window,) = cut.windows
    assert body(window, 0) == body(whole.windows[0], 0)[-18:]
    assert cut.dropped_tokens == cut.tokens - 18 == window.start > 0
    assert (window.ids[0], window.ids[-1]) == (whole.windows[0].ids[0], whole.windows[0].ids[-1])


@pytest.mark.parametrize(("cut", "kept"), [("longer", [("a", 3), ("b", 14)]), ("second", [("a", 3), ("b", 14)])])
def test_truncating_a_pair_on_the_left_keeps_the_end_of_its_longer_text(minilm, cut, kept):
    pair = "a a a", "c " * 30 + "b " * 14
    (found,) = minilm.encode([pair], max_length=20, on_overflow="truncate_left", offsets=True, cut=cut)
    (window,) = found.windows
    assert [(text[window.offsets[-2 if n else 1][0]], len(body(window, n))) for n, text in enumerate(pair)] == kept
    assert found.dropped_tokens == 30


def test_error_tells_the_text_its_length_the_limit_and_the_choices(minilm):
    assert len(minilm.encode(["word " * 8], max_length=10, on_overflow="error")) == 1
    with pytest.raises(TextTooLong) as error:
        minilm.encode(["short", "word " * 9], max_length=10, on_overflow="error")
    for part in ("text 2", "9 tokens", "limit of 10", "'window'", "'truncate'", "'error'"):
        assert part in str(error.value)


def test_what_tokenizer_json_stores_cuts_and_pads_nothing(minilm, unigram):
    assert (minilm.model_max_length, unigram.model_max_length) == (512, None)
    for tokenizer in (minilm, unigram):
        short, long = tokenizer.encode(["ba", "ba ko " * 300], max_length=NO_LIMIT)
        assert len(short.windows[0].ids) < 6
        assert len(long.windows[0].ids) > 500


def test_an_empty_text_gives_the_special_tokens_alone(tokenizer):
    (encoded,) = tokenizer.encode([""], max_length=8)
    assert encoded.tokens == 0
    assert [w.ids for w in encoded.windows] == [[tokenizer.cls_id, tokenizer.sep_id]]
    assert tokenizer.encode([], max_length=8) == []


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["fine", None], "text 2 .*NoneType"),
        (["fine", 3.5], "text 2 .*float"),
        ([b"bytes"], "text 1 .*bytes"),
        ([("a",)], r"text 1 .*tuple\[str\]"),
        ([("a", 1)], r"text 1 .*tuple\[str, int\]"),
        ([["a", "b"]], "text 1 .*list"),
        ("one string", "put it into a list"),
        (["fine", "ab\ud800c"], r"text 2 .*U\+D800.* character 2"),
        ([("fine", "\udfff")], r"text 1 .*U\+DFFF.* character 0"),
    ],
)
def test_what_is_not_a_text_is_refused_by_place(minilm, texts, message):
    with pytest.raises(InvalidInput, match=message):
        minilm.encode(texts, max_length=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 2}, "max_length above 2"),
        ({"max_length": -1}, "max_length above 2"),
        ({"max_length": 10, "stride": 8}, "stride from 0 to 7"),
        ({"max_length": 10, "stride": -1}, "stride from 0 to 7"),
        ({"max_length": 10, "on_overflow": "chop"}, "'window', 'error', 'truncate', 'truncate_left', got 'chop'"),
    ],
)
def test_arguments_out_of_range_are_refused(minilm, arguments, message):
    with pytest.raises(InvalidInput, match=message):
        minilm.encode(["a"], **arguments)


def test_a_stride_that_a_pair_has_no_room_for_is_refused_by_place(minilm):
    given = [("a", "b"), ("a a a a a", "b " * 50)]
    with pytest.raises(InvalidInput, match=r"holds 2 tokens of text 2"):
        minilm.encode(given, max_length=10, stride=4, cut="second")
    with pytest.raises(InvalidInput, match=r"holds 3 tokens of text 2"):
        minilm.encode(given, max_length=10, stride=4)


def test_ids_beyond_the_embedding_table_are_refused(minilm):
    minilm.check_vocabulary(len(minilm.vocabulary()))
    minilm.check_vocabulary(len(minilm.vocabulary()) + 64)
    with pytest.raises(IncompatibleWeights, match=r"up to 30521 .*30521 embedding rows"):
        minilm.check_vocabulary(len(minilm.vocabulary()) - 1)


def test_special_tokens_that_are_absent_are_named_when_asked_for(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")
    tokenizer = TextTokenizer.from_folder(tmp_path, WordPiece())
    assert (tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id) == (0, 1, 2)
    assert tokenizer.special_ids == {0, 1, 2}
    with pytest.raises(InvalidInput, match=r"no mask token.*'\[MASK\]'"):
        _ = tokenizer.mask_id
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": null}')
    with pytest.raises(InvalidInput, match=r"no pad token.*names none"):
        _ = TextTokenizer.from_folder(tmp_path, WordPiece()).pad_id


@pytest.mark.parametrize("bad", [-1, 30522, 10**9])
def test_ids_that_no_token_has_are_refused(minilm, bad):
    for call in (minilm.token, lambda number: minilm.decode([101, number])):
        with pytest.raises(InvalidInput, match=f"{bad}: ids go from 0 to 30521"):
            call(bad)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (recipes.BERT, r"tokenizer\.json or vocab\.txt"),
        (recipes.ROBERTA, r"tokenizer\.json or vocab\.json \+ merges\.txt"),
        (recipes.ALBERT, r"tokenizer\.json or spiece\.model"),
        (TokenizerFileOnly("it has no other"), r"expected tokenizer\.json, as it has no other\."),
    ],
)
def test_a_folder_without_a_tokenizer_says_what_was_expected(tmp_path, recipe, expected):
    with pytest.raises(UnknownModel, match=expected):
        TextTokenizer.from_folder(tmp_path, recipe)
    with pytest.raises(UnknownModel, match="checkpoint folder"):
        TextTokenizer.from_folder(tmp_path / "absent", recipe)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "tokenizer.json"),
        ("tokenizer.json", b"", "tokenizer.json"),
        ("tokenizer.json", b'{"version": "1.0"}', "tokenizer.json"),
        ("tokenizer.json", b"\xff\xfe", "tokenizer.json"),
        ("tokenizer_config.json", b"{", "tokenizer_config.json"),
        ("tokenizer_config.json", b"[]", "JSON object, got list"),
        ("tokenizer_config.json", b'{"do_lower_case": "yes"}', "do_lower_case.*'yes'"),
        ("tokenizer_config.json", b'{"strip_accents": 3}', "strip_accents.*3"),
        ("tokenizer_config.json", b'{"cls_token": {"text": "[CLS]"}}', "cls_token"),
        ("tokenizer_config.json", b'{"unk_token": null}', "no unk token"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
        (
            "tokenizer_config.json",
            b'{"added_tokens_decoder": {"9": {"content": "<t>"}}}',
            "id 9, but its id after the vocabulary is 4",
        ),
        ("tokenizer_config.json", rb'{"cls_token": "\ud800"}', "tokenizer_config.json"),
        ("special_tokens_map.json", b"nonsense", "special_tokens_map.json"),
        ("added_tokens.json", b'{"<t>": "9"}', "added_tokens.json"),
        ("vocab.txt", b"[UNK]\n[CLS]\na\n", r"vocab.txt has no token '\[SEP\]'"),
        ("vocab.txt", b"", r"vocab.txt has no token '\[UNK\]'"),
        ("vocab.txt", b"\xff\n", "vocab.txt is not"),
    ],
)
def test_broken_files_are_named(tmp_path, name, content, message):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")
    TextTokenizer.from_folder(tmp_path, WordPiece())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=message):
        TextTokenizer.from_folder(tmp_path, WordPiece())


@pytest.mark.parametrize("part", ["single", "pair"])
def test_a_template_with_undefined_tokens_is_refused(minilm_folder, tmp_path, part):
    content = json.loads((minilm_folder / "tokenizer.json").read_text())
    content["post_processor"][part][0]["SpecialToken"]["id"] = "[ELSE]"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json"):
        TextTokenizer.from_folder(tmp_path, WordPiece())


@pytest.mark.parametrize(("name", "content"), [("vocab.json", "{"), ("merges.txt", "no such merge\n")])
def test_broken_merges_are_named(roberta_folder, tmp_path, name, content):
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(roberta_folder / file, tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(CorruptCheckpoint, match=r"vocab\.json"):
        TextTokenizer.from_folder(tmp_path, recipes.ROBERTA)


def test_saving_adds_a_class_only_where_there_was_none(minilm_folder, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    shutil.copy(minilm_folder / "vocab.txt", source)
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false, "mine": 1}')
    TextTokenizer.from_folder(source, WordPiece()).save(target)
    saved = json.loads((target / "tokenizer_config.json").read_text())
    assert saved == {"do_lower_case": False, "mine": 1, "tokenizer_class": "BertTokenizer"}


def test_saving_over_its_own_folder_changes_nothing(roberta, tmp_path):
    roberta.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    TextTokenizer.from_folder(tmp_path, recipes.ROBERTA).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_half_a_megabyte_and_a_giant_word_take_bounded_time(tokenizer):
    rng = random.Random(3)
    giant = "".join(rng.choices(string.ascii_lowercase, k=50_000))
    begin = time.process_time()
    long, word, same = tokenizer.encode(["word " * 100_000, giant, "a" * 50_000], max_length=128)
    assert time.process_time() - begin < 10
    assert long.tokens >= 100_000
    assert sum(len(window.ids) - 2 for window in long.windows) >= long.tokens
    assert word.tokens > 0 < same.tokens


def test_texts_beyond_one_block_keep_their_order(minilm, monkeypatch):
    texts = [f"{number} {'x ' * (number % 7)}" for number in range(60)]
    expected = minilm.encode(texts, max_length=6)
    monkeypatch.setattr("bothways.text.windows._BLOCK_CHARACTERS", 25)
    assert minilm.encode(texts, max_length=6) == expected
    with pytest.raises(TextTooLong, match="text 42 "):
        minilm.encode([*["a"] * 41, "b " * 90], max_length=6, on_overflow="error")


def test_many_threads_get_what_one_gets(tokenizer):
    texts = ADVERSARIAL + random_texts(200, seed=5)
    expected = tokenizer.encode(texts, max_length=24, offsets=True)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: tokenizer.encode(texts, max_length=24, offsets=True), range(12)))
    assert all(result == expected for result in results)


@pytest.mark.slow
def test_memory_levels_off_over_ever_new_words(tmp_path, words):
    """The word cache of a BPE model fills once; with no bound, 60 000 more words would add some 150 MB."""
    Tokenizer(models.BPE(vocab={"<s>": 0, "</s>": 1, **{c: i + 2 for i, c in enumerate(string.ascii_lowercase)}},
                         merges=[])).save(str(tmp_path / "tokenizer.json"))  # fmt: skip
    tokenizer = TextTokenizer.from_folder(tmp_path, recipes.XLM_ROBERTA)
    rng = random.Random(11)

    def read(count: int) -> int:
        for _ in range(count // 1000):
            made = ["".join(rng.choices(string.ascii_lowercase, k=40)) for _ in range(1000)]
            tokenizer.encode(made, max_length=64)
        return psutil.Process().memory_info().rss

    filled = read(20_000)
    assert read(60_000) - filled < 20 * 2**20
