"""Words and sentences of a text, and the token of each word: as with transformers, whatever the tokenizer does."""

import random

import numpy as np
import piece_files
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from text_samples import ADVERSARIAL, random_texts

from bothways.errors import InvalidInput
from bothways.text import Places, ReadWords, TextTokenizer, Words, behind_marks, blanked_in_front, recipes, word_spans
from bothways.text.characters import UNSEEN, joiners
from bothways.text.words import sentence_spans

KINDS = ("minilm", "byte_level", "albert", "xlnet", "xlm-roberta", "camembert", "deberta-v2")


@pytest.fixture(scope="module")
def tokenizer_of(minilm, roberta_folder, tmp_path_factory):
    """A factory: a tokenizer of each kind; the byte-level one puts a space before the first word too."""
    made = {}

    def make(kind):
        if kind not in made:
            if kind == "minilm":
                made[kind] = minilm
            elif kind == "byte_level":
                folder = tmp_path_factory.mktemp(kind)
                for path in roberta_folder.iterdir():
                    (folder / path.name).write_bytes(path.read_bytes())
                (folder / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
                made[kind] = TextTokenizer.from_folder(folder, recipes.ROBERTA)
            else:
                folder = tmp_path_factory.mktemp(kind)
                piece_files.train(folder, kind)
                made[kind] = piece_files.opened(folder, kind)
        return made[kind]

    return make


def first_rows(tokenizer, words, **options):
    """For each word that has one, the window and the row of its first token."""
    read = ReadWords.of(words)
    [text] = tokenizer.encode([read.text], **{"max_length": 10**9, **options}, offsets=True)
    found = read.first_tokens([Places.of(window) for window in text.windows])
    return text, found


def sample_words(count):
    """Words of many scripts, without white space in them."""
    pieces = [word for text in [*ADVERSARIAL, *random_texts(count)] for word in text.split()]
    return [word for word in pieces if len(word) < 60]


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_stood_for_by_the_token_that_it_has_in_transformers(tokenizer_of, kind, words):
    # transformers hands lists of words (is_split_into_words) to the same library with is_pretokenized, as is done here.
    # It is given what the model reads of them: without controls in front, which put the library's offsets out.
    tokenizer, rng = tokenizer_of(kind), random.Random(1)
    theirs = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    hard = [rng.choices(sample_words(400), k=rng.randint(1, 9)) for _ in range(100)]
    plain = [*words[:50], "EU rejects German call to boycott British lamb .", "naïve café , 3.5 % of 1,000 !"]
    for listed in [*hard, *map(str.split, plain)]:
        text, found = first_rows(tokenizer, Words.of_list(listed))
        read = ReadWords.of(Words.of_list(listed))
        parts = [read.text[begin:end] for begin, end in zip(read.begins_W, read.ends_W, strict=True)]
        encoding = theirs.encode(parts, is_pretokenized=True)
        expected = {}
        for row, word in enumerate(encoding.word_ids):
            if word is not None and encoding.sequence_ids[row] == 0:
                expected.setdefault(word, row)
        assert encoding.ids == text.windows[0].ids
        assert dict(zip(found.words_M.tolist(), found.rows_M.tolist(), strict=True)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_windows_of_a_long_text_agree_on_the_first_token_of_a_word(tokenizer_of, kind, words):
    tokenizer = tokenizer_of(kind)
    given_words = Words.of_list(" ".join(words[:12]).split())
    whole, first = first_rows(tokenizer, given_words)
    ids = whole.windows[0].ids
    for max_length, stride in ((12, 0), (20, None), (20, 15)):
        text, found = first_rows(tokenizer, given_words, max_length=max_length, stride=stride)
        assert len(text.windows) > 5
        assert set(found.words_M.tolist()) == set(range(len(given_words)))
        by_word = dict(zip(first.words_M.tolist(), first.rows_M.tolist(), strict=True))
        for word, row, window, context in zip(
            found.words_M, found.rows_M, found.windows_M, found.context_M, strict=True
        ):
            held = text.windows[window]
            assert held.start + row == by_word[word]
            assert held.ids[row] == ids[by_word[word]]
            assert context == min(row + 1, len(held.ids) - row)


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12))
def test_words_of_a_list_keep_their_identity(listed):
    words = Words.of_list(listed)
    assert words.listed() == listed
    assert words.text == " ".join(listed)
    assert [words[number] for number in range(len(words))] == listed
    read = ReadWords.of(words)
    parts = [read.text[begin:end] for begin, end in zip(read.begins_W, read.ends_W, strict=True)]
    shown = [UNSEEN.sub("", word) for word in listed]
    assert all(part == "\ufffd" or word.endswith(part) for part, word in zip(parts, shown, strict=True))
    assert not any(part.isspace() for part in parts)
    assert (np.diff(np.stack([read.begins_W, read.ends_W], 1).ravel()) > 0).all()


@given(st.text(max_size=60))
def test_words_of_a_raw_text_hold_everything_that_can_be_seen_once(text):
    def is_blank(part):
        return not UNSEEN.sub("", part).strip().strip(joiners())

    spans, end = word_spans(text), 0
    for first, last in spans:
        assert not is_blank(text[first:last])
        assert is_blank(text[end:first])
        end = last
    assert is_blank(text[end:])
    assert not any(
        character.isspace() or character == "\u200b" for first, last in spans for character in text[first:last]
    )


@given(st.text("aé1'.-@ \u0301\u00ad\u2060\u200d\u200b", max_size=30))
def test_words_are_where_they_would_be_without_characters_that_cannot_be_seen(text):
    shown = "".join(each for each in text if each not in "\u00ad\u2060")
    words = [UNSEEN.sub("", text[first:last]) for first, last in word_spans(text)]
    assert words == [shown[first:last] for first, last in word_spans(shown)]
    read = ReadWords.of(Words.of_text(text))
    assert read.text == " ".join(words)
    assert [read.text[first:last] for first, last in zip(read.begins_W, read.ends_W, strict=True)] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Angela Merkel, 68.", "Angela|Merkel|,|68|."),
        ("don't O\u2019Hara e-mail x- -y", "don't|O\u2019Hara|e-mail|x|-|-|y"),
        ("Obama's it\u2019s LEE'S 's o'sea", "Obama|'s|it|\u2019s|LEE|'S|'|s|o'sea"),
        ("3.5 1,000 a,b 1,", "3.5|1,000|a|,|b|1|,"),
        ("@paul #tag a@b.org https://x.org/a?b=c, so", "@paul|#tag|a|@|b.org|https://x.org/a?b=c,|so"),
        ("हिन्दी भाषा", "हिन्दी|भाषा"),
        ("e\u0301te\u0301 naïve", "e\u0301te\u0301|naïve"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
        ("good👍🏽!!", "good|👍|🏽|!|!"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f!", "\U0001f3f4\U000e0067\U000e0062\U000e007f|!"),
        ("Jose\u0301's", "Jose\u0301|'s"),
        ("Ange\u00adla Merkel\u00ad, e\u2060-\u2060mail", "Ange\u00adla|Merkel|,|e\u2060-\u2060mail"),
        ("\ufeff\u2066Ada\u2069 \u200d.", "Ada|."),
        ("ភាសា\u200bខ្មែរ https://x.org/\u200by", "ភាសា|ខ្មែរ|https://x.org/|y"),
        ("\u00ad \u200b\u200e", ""),
        ("", ""),
        (" \n\t\u3000", ""),
    ],
)
def test_where_words_begin_and_end(text, words):
    assert [text[first:last] for first, last in word_spans(text)] == [word for word in words.split("|") if word]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_a_word_are_those_without_characters_that_cannot_be_seen(tokenizer_of, kind):
    texts = ["The cap\u00adtain\u200e of Ham\u2060burg", "The captain of Hamburg"]
    read = [first_rows(tokenizer_of(kind), Words.of_text(text)) for text in texts]
    assert read[0][0].windows[0].ids == read[1][0].windows[0].ids
    np.testing.assert_array_equal(read[0][1].rows_M, read[1][1].rows_M)


def test_a_word_without_a_character_is_refused():
    with pytest.raises(InvalidInput, match="word 2 is empty"):
        Words.of_list(["a", "", "b"])


def test_words_that_the_tokenizer_drops_have_no_token(minilm):
    text, found = first_rows(minilm, Words.of_list(["w", "\x01", " ", "\u200b", "x"]))
    assert text.tokens == 2
    assert found.words_M.tolist() == [0, 4]


# --- texts that begin with controls ---


def ends_of_tokens(tokenizer, context):
    """Where the tokens of the second text of a pair end, white space left out."""
    [text] = tokenizer.encode([("Who lived there?", context)], max_length=200, offsets=True)
    places = Places.of(text.windows[0])
    ends = [end for end, part in zip(places.ends_n.tolist(), places.sequences_n.tolist(), strict=True) if part == 1]
    return [end for end in dict.fromkeys(ends) if context[:end].strip()]


@pytest.mark.parametrize("kind", KINDS)
def test_controls_in_front_of_a_text_put_no_offset_out(tokenizer_of, kind):
    plain = "Ada Lovelace lived in London."
    text = "\x01\x02\n" + plain
    read = blanked_in_front(text)
    assert read == "   " + plain
    assert ends_of_tokens(tokenizer_of(kind), read) == [end + 3 for end in ends_of_tokens(tokenizer_of(kind), plain)]


@pytest.mark.parametrize("text", ["", "a", " a", "\u200ba", "\ufeff\x01", "é\x01"])
def test_other_texts_are_read_as_they_are(text):
    assert blanked_in_front(text) == text


def test_a_text_of_controls_alone_is_blank():
    assert blanked_in_front("\x01\n") == "  "


# --- marks that tokenizers leave out of their offsets ---


@pytest.mark.parametrize(
    ("text", "end", "moved"),
    [
        ("Cafe\u0301 Noir", 4, 5),
        ("\u2764\ufe0f!", 1, 2),
        ("\u0915\u0947", 1, 2),
        ("\u0915\u094d\u200d\u0937", 1, 3),
        ("\u2764\ufe0f\u200d\U0001f525", 1, 2),  # what the joiner joins is not taken in, so neither is the joiner
        ("Cafe", 4, 4),
        ("Cafe Noir", 4, 4),
        ("\u0301a", 0, 0),
    ],
)
def test_the_marks_of_a_character_belong_to_it(text, end, moved):
    assert behind_marks(text, end) == moved


CASES = {
    "One. Two! Three? Four": ["One.", "Two!", "Three?", "Four"],
    "Dr. J. K. Rowling came to the U.S. on Jan. 5. Then she left.": [
        "Dr. J. K. Rowling came to the U.S. on Jan. 5.",
        "Then she left.",
    ],
    'He said: "Stop!" Then he left... and came back.': ['He said: "Stop!"', "Then he left... and came back."],
    "3.5 is less than 4. See Fig. 3 (p. 7).": ["3.5 is less than 4.", "See Fig. 3 (p. 7)."],
    "a line\nanother\n\n third": ["a line", "another", "third"],
    "他走了。她说：“好！”然后回家。": ["他走了。", "她说：“好！”", "然后回家。"],  # noqa: RUF001
    "Was? Ja, z.B. Hunde. Gut.": ["Was?", "Ja, z.B. Hunde.", "Gut."],
    " \n ": [],
    "": [],
}


@pytest.mark.parametrize("text", CASES)
def test_sentences_of_examples(text):
    assert [text[begin:end] for begin, end in sentence_spans(text)] == CASES[text]


@given(st.text(alphabet=st.sampled_from(list("aB1 .!?\n\t\"')。")), max_size=80))
def test_sentences_are_ascending_and_leave_out_white_space_alone(text):
    spans = sentence_spans(text)
    outside = list(text)
    at = 0
    for begin, end in spans:
        assert at <= begin < end
        assert text[begin:end] == text[begin:end].strip()
        outside[begin:end] = " " * (end - begin)
        at = end
    assert not "".join(outside).strip()
