"""What every family's tagger keeps to, for spans and for plain tags in turn."""

import functools
import inspect

import pytest
import torch

from bothways import Ensemble
from bothways.data import read_rows
from bothways.families import FAMILIES
from bothways.tasks import TextTagger
from bothways.training.options import AdamW
from contract_cases import padding_side, write_pretrained
from everyday import some_of
from tiny_models import padded

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

KINDS = ("BIO", "plain")
CASES = [(model_type, KINDS[number % 2]) for number, model_type in enumerate(FAMILIES)]
EVERY_DAY = [case for case in CASES if case[0] in ("xlnet", "modernbert")]
every_family = pytest.mark.parametrize(("model_type", "kind"), CASES)
LONG = [f"w{5 + (7 * place) % 50}" for place in range(45)]


def rows(kind, count=16):
    """Words that say their tag: w5 a person, w6 the rest of one, w7 a place."""
    of_word = {
        "BIO": {"w5": "B-PER", "w6": "I-PER", "w7": "B-LOC"},
        "plain": {"w5": "NOUN", "w6": "ADJ", "w7": "VERB"},
    }[kind]
    made = []
    for number in range(count):
        names = (["w5", "w6"], ["w7"], ["w5"], ["w5", "w6", "w6"])[number % 4]
        filler = [f"w{25 + (7 * number + place) % 30}" for place in range(1 + number % 5)]
        words = [*filler[: number % 2], *names, *filler[number % 2 :]]
        tags = [of_word.get(word, "O" if kind == "BIO" else "X") for word in words]
        made.append({"tokens": words, "tags": tags})
    return made


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A factory: a tagger fitted to a few texts and the folder that it saved itself into, made once for a kind."""

    @functools.cache
    def make(model_type, kind, by_heart):
        folder = tmp_path_factory.mktemp(f"{model_type}-{kind}")
        write_pretrained(folder / "base", model_type)
        tagger = TextTagger.from_pretrained(folder / "base", device="cpu")
        data = rows(kind)
        epochs = 50 if by_heart else 1
        options = {"epochs": epochs, "learning_rate": 3e-3, "batch_size": 8, "patience": 8}
        tagger.fit(data, validation=data, optimizer=AdamW(weight_decay=0.0), **options)
        tagger.save(folder / "saved")
        return tagger, folder / "saved"

    return lambda *case, by_heart=False: make(*case, by_heart or case in EVERY_DAY)


@pytest.mark.parametrize(("model_type", "kind"), some_of(CASES, *EVERY_DAY))
def test_a_few_texts_are_learnt_by_heart(fitted, model_type, kind):
    tagger, _ = fitted(model_type, kind, by_heart=True)
    data = rows(kind)
    assert tagger.fitted.outputs.tag_set.scheme == kind
    answers = tagger.predict([row["tokens"] for row in data])
    assert [list(answer.tags) for answer in answers] == [row["tags"] for row in data]
    report = tagger.evaluate(data, resamples=10)
    assert report.accuracy.value == 1
    if kind == "BIO":
        assert report.span_f1.value == report.macro_span_f1.value == 1


@every_family
def test_a_saved_tagger_predicts_the_same_to_the_bit(fitted, model_type, kind):
    tagger, folder = fitted(model_type, kind)
    again = TextTagger.from_pretrained(folder, device="cpu")
    assert again.fitted.outputs.tag_set == tagger.fitted.outputs.tag_set
    assert again.fitted.outputs.confidence.temperature == tagger.fitted.outputs.confidence.temperature
    assert again.columns == tagger.columns
    texts = [*(row["tokens"] for row in rows(kind)), LONG, "w5 w6, w7!"]
    assert again.predict(texts) == tagger.predict(texts)


@pytest.mark.parametrize(("model_type", "kind"), EVERY_DAY)
def test_an_ensemble_of_equal_taggers_answers_as_one(fitted, model_type, kind):
    tagger, folder = fitted(model_type, kind)
    texts = [*(row["tokens"] for row in rows(kind)), LONG]
    found = list(
        Ensemble.of([folder, folder], device="cpu").predict_stream(read_rows([{"tokens": each} for each in texts]))
    )
    for each, alone in zip(found, tagger.predict(texts), strict=True):
        assert each.together.tags == alone.tags
        expected = pytest.approx([word.probability for word in alone.words], abs=1e-5)
        assert [word.probability for word in each.together.words] == expected
        assert each.disagreement.differing == 0


@every_family
def test_a_saved_tagger_opens_in_transformers_with_the_same_logits(fitted, model_type, kind):
    tagger, folder = fitted(model_type, kind)
    model, info = transformers.AutoModelForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert tuple(model.config.id2label.values()) == tagger.fitted.outputs.tag_set.labels
    assert_same_logits(tagger, model, rows(kind), model_type)


@every_family
def test_a_tagger_of_transformers_opens_with_the_same_logits(fitted, model_type, kind, tmp_path):
    _, folder = fitted(model_type, kind)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    model.save_pretrained(tmp_path)
    for path in folder.glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert not (tmp_path / "bothways.json").exists()
    tagger = TextTagger.from_pretrained(tmp_path, device="cpu")
    assert tagger.fitted.outputs.tag_set.scheme == kind
    assert_same_logits(tagger, model, rows(kind), model_type)


def assert_same_logits(tagger, model, data, model_type):
    """Each word of the tiny tokenizers is one token, between the special ones."""
    ours_MC = tagger.score(data).logits
    encoded = tagger.model.tokenizer.encode([" ".join(row["tokens"]) for row in data], max_length=18, offsets=True)
    side = padding_side(model_type)
    windows = [text.windows[0] for text in encoded]
    ids_BS, mask_BS = padded([window.ids for window in windows], side, tagger.model.settings["pad_token_id"])
    # Given, because XLNet leaves segments out of the sum where they are not.
    takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
    types = {"token_type_ids": padded([window.types for window in windows], side, 0)[0]} if takes_types else {}
    with torch.no_grad():
        theirs_BSC = model.eval()(ids_BS, attention_mask=mask_BS, **types).logits
    theirs = [theirs_C[mask_S.bool()] for theirs_C, mask_S in zip(theirs_BSC, mask_BS, strict=True)]
    words = [
        logits_SC[[place for place, number in enumerate(text.windows[0].sequences) if number == 0]]
        for logits_SC, text in zip(theirs, encoded, strict=True)
    ]
    torch.testing.assert_close(torch.from_numpy(ours_MC).float(), torch.cat(words), rtol=0, atol=1e-5)
