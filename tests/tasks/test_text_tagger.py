"""The tagger: words and offsets, long texts, schemes, calibration, loss, training that goes on."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from bothways import TextTagger
from bothways.confidence.confidence import Confidence
from bothways.errors import InvalidInput, NotCalibrated, TextsTruncated
from bothways.evaluation.tag_schemes import converted
from bothways.evaluation.temperature import Temperature, apply_temperature
from bothways.packing import pack
from bothways.tasks.heads.splits import TrainingData, split_fit_options
from bothways.tasks.heads.training import CONTINUED, train_head
from bothways.tasks.tagging.outputs import word_scores
from bothways.tasks.tagging.tag_set import TagSet
from bothways.text import ReadWords, Words, WordStarts
from bothways.training.options import AdamW, TrainingOptions
from classifier_cases import FILLER, OF_WORD, plant_words, without_dropout
from classifier_cases import named_rows as rows
from tiny_models import edit_config, write_checkpoint


def varied(count, seed):
    """Names of both kinds, and marks, which the tokenizer does not know, anywhere in texts of up to 16 words."""
    rng, made = random.Random(seed), []
    for _ in range(count):
        words, length = [], rng.randint(1, 14)
        while len(words) < length:
            names = (["w5"], ["w5", "w6"], ["w5", "w6", "w6"], ["w7"])
            words += rng.choice((*names, [rng.choice(FILLER)], [rng.choice(",!")]))
        made.append({"tokens": words, "tags": [OF_WORD.get(word, "O") for word in words]})
    return made


def opened(folder, **options):
    return TextTagger.from_pretrained(folder, device="cpu", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tagger that knows its few words."""
    made = tmp_path_factory.mktemp("tagger")
    write_checkpoint(made / "base")
    tagger = opened(plant_words(without_dropout(made / "base")))
    options = {"epochs": 1, "learning_rate": 1e-3, "batch_size": 16, "optimizer": AdamW(weight_decay=0.0)}
    record = tagger.fit(varied(40, 1), validation=varied(40, 2), **options)
    assert max(each.metrics["span_f1"] for each in record.validations) > 0.98
    tagger.save(made / "saved")
    return made / "saved"


@pytest.fixture
def tagger(folder):
    return opened(folder)


def test_spans_stand_where_the_original_text_has_them(tagger):
    text = "  w20\tw5 \n w6,w7!  w5"
    answer = tagger.predict(text)
    assert answer.text == text
    assert [word.text for word in answer.words] == ["w20", "w5", "w6", ",", "w7", "!", "w5"]
    for each in (*answer.words, *answer.spans):
        assert text[each.start : each.end] == each.text
    assert [(span.label, span.text) for span in answer.spans] == [("PER", "w5 \n w6"), ("LOC", "w7"), ("PER", "w5")]
    assert answer.spans[0].words == (1, 3)
    assert answer.tokens_read.windows == 1
    assert answer.tokens_read.dropped_tokens == 0


def test_words_of_a_list_come_back_as_they_were(tagger):
    words = ["w5", "\x01", "w6", " ", "two words", "\u200b", "[SEP]", "w7"]
    [answer] = tagger.predict([words])
    assert [word.text for word in answer.words] == words
    assert answer.text == " ".join(words)
    assert all(answer.text[word.start : word.end] == word.text for word in answer.words)
    assert all(0 < word.probability <= 1 for word in answer.words)


def test_words_that_the_tokenizer_drops_are_not_learnt_and_have_the_probability_of_a_guess(minilm_folder):
    tagger, empty = opened(minilm_folder, max_length=16), {"tokens": ["\x01"], "tags": ["O"]}
    tagger.fit([*rows(4), empty, *rows(4)], validation=[*rows(4), empty], epochs=1, show_progress=False)
    assert tagger.card["training_rows"] == 8
    [answer] = tagger.predict([["\x01", "\x02"]])
    assert answer.tags == ("O", "O")
    assert [word.probability for word in answer.words] == pytest.approx([1 / len(tagger.labels)] * 2, abs=1e-5)
    assert answer.spans == ()


def test_many_texts_raw_or_as_words_are_answered_in_order(tagger):
    words = [row["tokens"] for row in rows(150)]
    answers = tagger.predict([each if number % 2 else " ".join(each) for number, each in enumerate(words)])
    assert [[word.text for word in answer.words] for answer in answers] == words
    assert list(tagger.predict_stream(iter(words))) == tagger.predict(words)
    assert [answer.tags for answer in answers] == [answer.tags for answer in tagger.predict(words)]


def test_an_answer_is_ready_for_json(tagger):
    answer = tagger.predict("w5 w6 w20").to_dict()
    assert json.loads(json.dumps(answer))["spans"][0] == {
        "label": "PER",
        "start": 0,
        "end": 5,
        "text": "w5 w6",
        "probability": answer["spans"][0]["probability"],
        "words": [0, 2],
    }
    assert [word["tag"] for word in answer["words"]] == ["B-PER", "I-PER", "O"]
    assert (answer["windows"], answer["dropped_tokens"]) == (1, 0)


def test_tags_are_written_in_other_schemes(tagger):
    answer = tagger.predict("w5 w6 w20 w7")
    assert answer.tags == ("B-PER", "I-PER", "O", "B-LOC")
    assert answer.tags_in("BIOES") == ["B-PER", "E-PER", "O", "S-LOC"]
    assert answer.tags_in("IOB1") == ["I-PER", "I-PER", "O", "I-LOC"]


# --- long texts ---


def test_a_long_text_is_read_in_windows_and_each_word_has_one_tag(tagger):
    words = ["w5", "w6", "w20", "w7", "w30", "w31"] * 20
    [answer] = tagger.predict([words])
    assert answer.tokens_read.windows > 5
    assert len(answer.words) == len(words)
    assert len(answer.spans) == 40


def test_windows_vote_with_the_context_that_they_have(tagger):
    words = Words.of_list([f"w{20 + number % 40}" for number in range(30)])
    read = ReadWords.of(words)
    [text] = tagger.model.tokenizer.encode([read.text], max_length=18)
    expected_WC, weights_W = np.zeros((30, len(tagger.fitted.outputs.tag_set.labels))), np.zeros(30)
    with torch.no_grad():
        for window in text.windows:
            logits = tagger.fitted.backend.head_model(pack([window.ids], [window.types])).double()
            logs = logits.log_softmax(1).numpy()
            for row in range(1, len(window.ids) - 1):
                context = min(row + 1, len(window.ids) - row)
                expected_WC[window.start + row - 1] += context * logs[row]
                weights_W[window.start + row - 1] += context
    tags = ["O"] * 30
    scores_WC = tagger.score([{"tokens": words.listed(), "tags": tags}]).logits
    np.testing.assert_allclose(scores_WC, expected_WC / weights_W[:, None], rtol=1e-5, atol=1e-5)


def test_what_was_cut_is_counted_and_outside(folder):
    cut = opened(folder, on_overflow="truncate")
    [answer] = cut.predict([["w20"] * 14 + ["w5"] + ["w6"] * 10])
    assert answer.tokens_read.dropped_tokens == 9
    assert answer.tags[14:] == ("B-PER", "I-PER", *["O"] * 9)
    assert answer.words[-1].probability < 0.3


def test_a_training_says_what_it_does_not_learn_from(tiny_bert):
    long = [
        {"tokens": ["w20"] * 14 + ["w5"] + ["w6"] * 10, "tags": ["O"] * 14 + ["B-PER"] + ["I-PER"] * 10},
        *rows(7),
    ]
    with pytest.warns(TextsTruncated, match=r"1 of 8 texts were truncated: 9 tokens were not read"):
        opened(tiny_bert, on_overflow="truncate").fit(long, validation=rows(3), epochs=1)


# --- schemes ---


@pytest.mark.parametrize("scheme", ["BIOES", "IOB1"])
def test_data_of_any_scheme_are_learnt_and_evaluated(tiny_bert, scheme):
    other = [{**row, "tags": converted(row["tags"], "BIO", scheme)} for row in rows(20)]
    tagger = opened(tiny_bert)
    tagger.fit(other, validation=rows(8) if scheme == "IOB1" else other, epochs=1)
    assert tagger.fitted.outputs.tag_set.scheme == ("BIO" if scheme == "IOB1" else scheme)
    in_their_own, in_ours = (tagger.evaluate(data, resamples=5) for data in (other, rows(20)))
    assert in_their_own.to_dict() == in_ours.to_dict()
    assert in_ours.counts["spans"] == sum(tag.startswith("B-") for row in rows(20) for tag in row["tags"])


@pytest.mark.parametrize("spell", [str, str.lower, lambda tag: tag if tag == "O" else f"{tag}-"])
def test_tags_without_a_type_are_spans_of_one(tiny_bert, tmp_path, spell):
    data = [{"tokens": ["a", "cat", "sat", "."], "tags": [spell(tag) for tag in "BIOO"]}] * 30
    tagger = opened(tiny_bert)
    tagger.fit(data, updates=2, seed=1)
    assert tagger.labels == ("O", "B", "I")
    tagger.save(tmp_path / "saved")
    report = opened(tmp_path / "saved").evaluate(data, resamples=5)
    assert (report.counts["spans"], report.span_f1.value) == (30, 1.0)
    assert [(span.label, span.words) for span in tagger.predict([["a", "cat", "sat", "."]])[0].spans] == [("_", (0, 2))]


def test_tags_with_prefixes_are_taken_as_they_are_on_request(tiny_bert, tmp_path):
    odd = [{"tokens": ["w5", "w6"], "tags": ["I-PER", "M-PER"]}, {"tokens": ["w7"], "tags": ["I-PER"]}]
    tagger = opened(tiny_bert)
    tagger.fit(odd, validation=odd, scheme="plain", epochs=1)
    tagger.save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    assert again.fitted.outputs.tag_set == TagSet(("I-PER", "M-PER"), "plain")
    assert "accuracy" in again.evaluate(odd, resamples=5).to_dict()
    assert set(again.predict("w5 w6").tags) <= {"I-PER", "M-PER"}
    with pytest.raises(InvalidInput, match="encode no spans"):
        again.predict("w5 w6", scheme="BIO")


def test_labels_stand_in_the_config_and_the_scheme_beside_it(folder):
    config = json.loads((folder / "config.json").read_text())
    assert list(config["id2label"].values()) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert config["architectures"] == ["BertForTokenClassification"]
    ours = json.loads((folder / "bothways.json").read_text())
    assert (ours["task"], ours["scheme"]) == ("tagging", "BIO")
    assert ours["card"]["columns"] == {"tokens": "tokens", "tags": "tags", "text": ["text"]}


def test_a_model_of_others_may_be_said_to_be_of_another_scheme(tmp_path):
    write_checkpoint(tmp_path, architecture="BertForTokenClassification")
    edit_config(tmp_path, id2label={"0": "O", "1": "B-X", "2": "I-X"})
    assert opened(tmp_path).fitted.outputs.tag_set.scheme == "BIO"
    loose = opened(tmp_path, scheme="IOB1")
    assert loose.fitted.outputs.tag_set.scheme == "IOB1"
    assert opened(tmp_path, labels=["NOUN", "VERB", "ADJ"]).fitted.outputs.tag_set == TagSet(
        ("NOUN", "VERB", "ADJ"), "plain"
    )


def test_outputs_with_equal_names_are_refused_unless_they_are_named(tmp_path):
    write_checkpoint(tmp_path, architecture="BertForTokenClassification")
    edit_config(tmp_path, id2label={"0": "NOUN", "1": "VERB", "2": "NOUN"})
    with pytest.raises(InvalidInput, match=r"gives the outputs 0 and 2 the same name, 'NOUN'. Pass labels=\[...\]"):
        opened(tmp_path)
    assert opened(tmp_path, labels=["NOUN", "VERB", "ADJ"]).labels == ("NOUN", "VERB", "ADJ")


def test_a_model_of_others_is_not_said_to_be_of_a_scheme_that_it_cannot_write(tmp_path):
    write_checkpoint(tmp_path, architecture="BertForTokenClassification")
    edit_config(tmp_path, id2label={"0": "O", "1": "B-X", "2": "I-X"})
    with pytest.raises(InvalidInput, match=r"no valid BIOES sequence contains 'B-X', 'I-X'.*'plain'"):
        opened(tmp_path, scheme="BIOES")


def test_a_text_of_which_nothing_can_be_seen_has_no_words(folder):
    tagger = opened(folder)
    with pytest.raises(InvalidInput, match="text 2 is empty or only white space and invisible characters"):
        tagger.predict(["w5", "\u200b\u00ad"])
    found = tagger.predict("w5\u00ad w\u20607.")
    assert [(word.text, word.start, word.end) for word in found.words] == [
        ("w5", 0, 2),
        ("w\u20607", 4, 7),
        (".", 7, 8),
    ]
    assert found.tags == tagger.predict("w5 w7.").tags


# --- calibration ---


def test_probabilities_are_the_calibrated_scores(tagger):
    data = rows(6)
    scores_MC = tagger.score(data).logits
    expected_MC = apply_temperature(scores_MC, tagger.fitted.outputs.confidence.temperature)
    answers = tagger.predict([row["tokens"] for row in data])
    tags = [tag for answer in answers for tag in answer.tags]
    found = [word.probability for answer in answers for word in answer.words]
    chosen = [expected_MC[place, tagger.fitted.outputs.tag_set.labels.index(tag)] for place, tag in enumerate(tags)]
    assert found == pytest.approx(chosen, abs=1e-6)


def test_calibration_can_be_left_out_and_insisted_on(tagger):
    def with_temperature(temperature):
        outputs = tagger.fitted.outputs.with_confidence(Confidence(temperature))
        return tagger._with(replace(tagger.fitted, outputs=outputs))

    hot, cold = (with_temperature(Temperature(4.0)).predict("w20 w5", calibrated=each) for each in (None, False))
    assert hot.tags == cold.tags
    assert all(a.probability < b.probability for a, b in zip(hot.words, cold.words, strict=True))
    with pytest.raises(NotCalibrated):
        with_temperature(None).predict("w5", calibrated=True)


# --- training ---


def prepared(tagger, data, *, scheme, **options):
    """What a fit is before its first update."""
    training = TrainingOptions(**options)
    columns, own, _ = split_fit_options(tagger, {"scheme": scheme})
    return train_head(tagger.spec, tagger.backend, tagger._fitted, TrainingData(data, data), columns, own, training)


def test_the_loss_is_that_of_transformers(base):
    transformers = pytest.importorskip("transformers")
    tagger, data = opened(without_dropout(base)), rows(6)
    tagger.fit(data, validation=data, epochs=1, learning_rate=1e-9, scheme="BIO")
    objective = prepared(tagger, data, scheme="BIO", epochs=1, batch_size=6, max_tokens=12, seed=3).objective
    (update,) = objective.updates(0, 0)
    assert len(update.micro_batches) > 1
    assert update.weight == sum(len(row["tokens"]) for row in data)
    loss = sum(objective.loss(part.payload) for part in update.micro_batches) / update.weight
    tagger.save(base.parent / "saved")
    model = transformers.AutoModelForTokenClassification.from_pretrained(base.parent / "saved").eval()
    total = 0.0
    for row in data:
        ids = [1, *(int(word[1:]) for word in row["tokens"]), 2]
        labels = [-100, *(tagger.labels.index(tag) for tag in row["tags"]), -100]
        losses = model(torch.tensor([ids]), labels=torch.tensor([labels])).loss * len(row["tokens"])
        total += losses.item()
    assert loss.item() == pytest.approx(total / update.weight, abs=1e-5)


def test_a_word_in_several_windows_counts_once(tiny_bert):
    long = [{"tokens": ["w20"] * 50, "tags": ["O"] * 49 + ["X"]}]
    objective = prepared(opened(tiny_bert), long, scheme="plain").objective
    windows = len(objective.store.lengths)
    assert windows > 3
    assert objective.targets.weights_W.sum() == pytest.approx(50)


def test_training_goes_on_with_the_head_where_the_tags_are_the_same(tagger):
    barely = {"epochs": 1, "learning_rate": 1e-9, "optimizer": AdamW(weight_decay=0.0)}
    head = tagger.fitted.backend.head_model.head.output.weight
    tagger.fit(rows(8), validation=rows(8), **barely)
    torch.testing.assert_close(tagger.fitted.backend.head_model.head.output.weight, head, rtol=0, atol=1e-6)
    other = [{**row, "tags": [tag.replace("LOC", "ORG") for tag in row["tags"]]} for row in rows(8)]
    tagger.fit(other, validation=other, **barely)
    assert not torch.allclose(tagger.fitted.backend.head_model.head.output.weight, head, rtol=0, atol=1e-3)


# --- bad input ---


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([{"tokens": ["w5"], "tags": ["O", "O"]}], "row 1 of the given list has 1 words in 'tokens' but 2 tags"),
        (
            [{"tokens": ["w5"], "tags": ["B-X"]}, {"tokens": ["w5"], "tags": ["Q-X"]}],
            "row 2 .* 'Q-X'.* none of the schemes",
        ),
        (
            [{"tokens": ["w5"], "tags": ["B-X"]}, {"tokens": ["w5", "w6"], "tags": ["B-X", "I-Y"]}],
            "row 2 .* 'I-Y' at word 2, after 'B-X', which BIO does not allow",
        ),
        ([{"tokens": ["w5"], "tags": ["O"]}] * 3, "at least two tags, but every word of the training data has 'O'"),
    ],
)
def test_training_data_that_are_not_usable_are_refused(tiny_bert, data, said):
    with pytest.raises(InvalidInput, match=said):
        opened(tiny_bert).fit(data, validation=data)


def test_a_scheme_that_the_data_do_not_keep_to_is_refused(tiny_bert):
    with pytest.raises(InvalidInput, match=r"row 1 .* which BIOES does not allow there"):
        opened(tiny_bert).fit(rows(20), scheme="BIOES")
    with pytest.raises(InvalidInput, match=r"scheme must be one of 'BIO', .*got 'BMES'"):
        opened(tiny_bert).fit(rows(20), scheme="BMES")


def test_tags_that_were_not_there_in_training_are_refused_by_row(tagger):
    with pytest.raises(InvalidInput, match="row 1 of the given list has the tag 'B-ORG' at word 1, which this tagger"):
        tagger.evaluate([{"tokens": ["w5"], "tags": ["B-ORG"]}])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([""], "text 1 is empty"),
        ([[]], "text 1 is empty"),
        ([["w5", ""]], "text 1: word 2 is empty"),
        ([3], "text 1 to be a str or a list of str, got int"),
        (["w5 \ud800"], "half of a surrogate pair"),
    ],
)
def test_texts_that_are_none_are_refused_by_number(tagger, texts, said):
    with pytest.raises(InvalidInput, match=said):
        tagger.predict(texts)


def test_labels_that_do_not_fit_the_head_are_refused(tmp_path, tiny_bert):
    write_checkpoint(tmp_path / "token", architecture="BertForTokenClassification")
    with pytest.raises(InvalidInput, match="does not name the classes"):
        opened(tmp_path / "token")
    with pytest.raises(InvalidInput, match="has 3 outputs, so it needs 3 labels"):
        opened(tmp_path / "token", labels=["O", "B-X"])
    with pytest.raises(InvalidInput, match="this checkpoint has none"):
        opened(tiny_bert, scheme="BIO")


def test_outputs_in_another_order_keep_their_tags_when_training_goes_on(folder, tmp_path):
    order = ["O", "I-PER", "B-PER", "B-LOC", "I-LOC"]  # as of a model from elsewhere
    assert opened(folder, labels=order).labels == opened(folder).labels
    shutil.copytree(folder, tmp_path / "model")
    edit_config(tmp_path / "model", id2label={str(place): name for place, name in enumerate(order)})
    tagger = opened(tmp_path / "model")
    ready = prepared(tagger, rows(20), scheme="BIO")
    assert list(ready.setup.learner.outputs.labels) == order
    assert ready.objective.baseline.name == CONTINUED


def test_words_in_several_windows_have_finite_scores_however_large_the_logits_are():
    tokens = WordStarts(*(np.array(each) for each in ([0, 0], [1, 0], [0, 1], [1, 1])))
    rows = [np.array([[0.0, 0.0], [2000.0, 0.0]]), np.array([[-2000.0, 0.0]])]
    found_WC = word_scores(rows, tokens, 1, np.zeros(2))
    np.testing.assert_allclose(found_WC, [[-1000.0, -1000.0]])
