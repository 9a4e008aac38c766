"""The terms that texts are found by: words of all scripts, however they are written."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_samples import ENCODER, random_vectors

from bothways.retrieval import SearchIndex
from bothways.retrieval.lexical import terms_of


def latin_letters():
    """Letters that are the same in all normal forms that are composed, also once they are folded."""
    letters = [chr(place) for place in range(0xC0, 0x250)]
    folded = [unicodedata.normalize("NFKC", each).casefold() for each in letters]
    kept = [each for each, fold in zip(letters, folded, strict=True) if unicodedata.is_normalized("NFKC", each + fold)]
    return "".join(set(kept) - {"İ"})


@given(st.text(latin_letters() + "aZ09_ '-.\n\u2019\u2014€"))
def test_ordinary_latin_words_are_runs_of_letters_and_digits_without_case(text):
    assert terms_of(text) == re.findall(r"\w+", text.casefold())


@given(st.text(st.characters(codec="ascii")))
def test_words_of_ascii_are_cut_as_others_are(text):
    assert terms_of(text) == terms_of(text + " é")[:-1]


@given(st.text() | st.text("Caé\u0301\u0323\u0345\u0391ΐIİ한\u1112ाहिؤكِ\u304bが\u3099\u00ad\u200c "))
def test_terms_do_not_depend_on_the_normal_form(text):
    assert (
        terms_of(unicodedata.normalize("NFD", text)) == terms_of(text) == terms_of(unicodedata.normalize("NFC", text))
    )


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("हिन्दी भाषा", "हिन्दी|भाषा"),
        ("நன்றி, বাংলা", "நன்றி|বাংলা"),
        ("كِتَاب שָׁלוֹם", "كِتَاب|שָׁלוֹם"),
        ("Ange\u00adla \ufeffMer\u2060kel\u200e x\u200by", "angela|merkel|x|y"),
        ("Auf\u200clage \u0915\u094d\u200d\u0937", "auflage|\u0915\u094d\u0937"),
        ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc|\u062e\u0648"),
        ("\u0301a !\u0301 \ufe0f", "a"),
        ("İstanbul ISTANBUL", "istanbul|istanbul"),
        ("Straße STRASSE ΕΛΛΆΣ Ελλάς", "strasse|strasse|ελλάσ|ελλάσ"),
        ("\uff21\uff42 ﬁne CO₂ \u210c \ufefb", "ab|fine|co2|h|\u0644\u0627"),
        ("Apple™ 10½", "apple|101\u20442"),
        ("한국어 검색", "한국어|검색"),
        ("猫", "猫"),
        ("東京都", "東|京|都|東京|京都"),
        ("葛\U000e0100城", "葛|城|葛城"),
        ("iPhone手机3", "iphone|手|机|手机|3"),
        ("ｶﾞｽ、ガス", "ガ|ス|ガス|ガ|ス|ガス"),
        ("ភាសា", "ភា|សា|ភាសា"),
        ("กิน", "กิ|น|กิน"),
    ],
)
def test_the_terms_of_a_text(text, terms):
    assert terms_of(text) == terms.split("|")


@pytest.mark.parametrize(
    ("language", "texts", "query"),
    [
        ("hindi", ["भारतीय भाषा", "हिन्दी भाषाओं", "फल"], "हिन्दी"),
        ("arabic", ["قلم", "الكِتَابُ", "كلب"], "كتاب"),
        ("english", ["on deck", "a cafe\u0301", "the cave"], "Café"),
        ("english", ["京大", "昨日東京に行った", "大阪"], "東京"),
        ("english", ["犬が好き", "白い猫がいる", "鳥"], "猫"),
    ],
)
def test_a_text_is_found_by_a_word_of_its_script(language, texts, query):
    index = SearchIndex.build(random_vectors(3), texts=texts, encoder=ENCODER, language=language)
    assert index.search_lexical([query], 3)[0][0].id == "1"
