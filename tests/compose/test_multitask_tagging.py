"""Tasks that label texts and tasks that tag words, above one encoder and from one pass of it."""

import json
import shutil

import numpy as np
import pytest
import torch
from ensemble_cases import of_one_task

from bothways import MultiTask, TaggingData, TaskData, TextTagger
from bothways.compose.opening import open_trained
from bothways.data import read_rows
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.tasks import FillMask, PairClassifier, QuestionAnswerer, TextClassifier
from bothways.tasks.columns import TextColumns
from bothways.training.options import AdamW
from classifier_cases import named_rows as tagged
from classifier_cases import plant_words, without_dropout
from tiny_models import write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6}
TEXTS = ["w20 w5", "w21 w5 w6, w22! w7", "  w9\tw7 \n w5", "w5 w6 " * 20]


def labelled(count=24):
    """A label that the first word says."""
    return [{"text": f"w{9 + number % 2}, w{20 + number % 30}", "label": "ab"[number % 2]} for number in range(count)]


TASKS = {
    "animal": TaskData(labelled(), labelled(8)),
    "names": TaggingData(tagged(), tagged(8)),
}


def fitted(folder, tasks=TASKS, **options):
    model = MultiTask.from_pretrained(folder, device="cpu")
    model.fit(tasks, **{**QUICK, **options})
    return model


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A model that knows its few names, and the folder it was saved in."""
    folder = tmp_path_factory.mktemp("both")
    write_checkpoint(folder / "base")
    model = fitted(plant_words(without_dropout(folder / "base")), optimizer=AdamW(weight_decay=0.0))
    model.save(folder / "saved")
    return model, folder / "saved"


def test_texts_are_labelled_and_tagged_by_one_pass(both, encoder_passes):
    model, _ = both
    answers = model.predict(TEXTS)
    together = len(encoder_passes)
    labels, taggings = model.part("animal").predict(TEXTS), model.part("names").predict(TEXTS)
    assert len(encoder_passes) == 3 * together
    for answer, label, tagging in zip(answers, labels, taggings, strict=True):
        assert answer["animal"].probabilities == pytest.approx(label.probabilities, abs=1e-6)
        assert answer["animal"].out_of_domain_score == pytest.approx(label.out_of_domain_score, rel=1e-4, abs=1e-4)
        assert answer["animal"].tokens_read == label.tokens_read == tagging.tokens_read
        assert answer["names"].tags == tagging.tags
        assert answer["names"].spans == pytest.approx(tagging.spans) or [
            (span.start, span.end, span.label) for span in answer["names"].spans
        ] == [(span.start, span.end, span.label) for span in tagging.spans]
    assert answers[-1]["names"].tokens_read.windows > 1


def test_names_are_learnt_beside_labels(both):
    model, _ = both
    data = tagged(12)
    answers = model.predict([row["tokens"] for row in data])
    assert [list(answer["names"].tags) for answer in answers] == [row["tags"] for row in data]


def test_spans_stand_where_the_original_text_has_them(both):
    model, _ = both
    text = "  w20\tw5 \n w6!  w9"
    answer = model.predict(text)["names"]
    assert answer.text == text
    assert [(span.label, text[span.start : span.end]) for span in answer.spans] == [("PER", "w5 \n w6")]


def test_words_of_a_list_are_read_as_they_are(both):
    model, _ = both
    words = ["w5", "two words", "w9"]
    [answer] = model.predict([words])
    assert [word.text for word in answer["names"].words] == words
    assert answer["animal"].label in "ab"


def reads_words(model):
    """Whether a model reads the words of a text with single spaces between them."""
    opened = model.backend
    return opened.reading.as_words


def test_a_text_is_read_in_one_form_in_training_and_in_use(base):
    """ "w9, w5! w6" and "w9 , w5 ! w6" are the same to both tasks, alone and together."""
    model = fitted(base, epochs=1)
    spaced, raw = model.predict(["w9, w5! w6", "w9 , w5 ! w6"])
    assert spaced["animal"].probabilities == pytest.approx(raw["animal"].probabilities, abs=1e-6)
    part = model.part("animal")
    assert part.predict("w9, w5! w6").probabilities == pytest.approx(spaced["animal"].probabilities, abs=1e-6)
    assert part.fitted.backend.reading.as_words
    assert not reads_words(TextClassifier.from_pretrained(base, device="cpu"))


def test_a_task_that_is_saved_alone_reads_as_it_did(both, tmp_path):
    model, _ = both
    for name in TASKS:
        model.part(name).save(tmp_path / name)
        alone = open_trained(tmp_path / name, device="cpu")
        assert alone.predict(TEXTS) == model.part(name).predict(TEXTS)


def test_what_is_trained_on_a_part_reads_texts_as_they_are_given(both, tmp_path):
    """A part beside a tagger reads words with single spaces between them; offsets must not be those of such texts."""
    model, _ = both
    model.part("animal").save(tmp_path / "part")
    assert reads_words(TextClassifier.from_pretrained(tmp_path / "part", device="cpu"))
    for kind in (TextTagger, QuestionAnswerer, PairClassifier, MultiTask, FillMask):
        assert not reads_words(kind.from_pretrained(tmp_path / "part", device="cpu"))
    shutil.copytree(tmp_path / "part", tmp_path / "plain")
    path = tmp_path / "plain" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "as_words": False}))
    data = [{**row, "tokens": [f"#{word}%" for word in row["tokens"]]} for row in tagged()]
    taggers = [TextTagger.from_pretrained(tmp_path / name, device="cpu") for name in ("part", "plain")]
    for tagger in taggers:
        tagger.fit(data, validation=data, **QUICK)
    part, plain = (tagger.predict([data[0]["tokens"]]) for tagger in taggers)
    assert part == plain


def test_a_tagger_that_comes_second_opens_in_transformers(both, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, folder = both
    copy = of_one_task(shutil.copytree(folder, tmp_path / "copy"), "names")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(copy).eval()
    row = tagged(2)[1]
    ids = torch.tensor([[1, *(int(word[1:]) for word in row["tokens"]), 2]])
    with torch.no_grad():
        theirs_WC = theirs(ids).logits[0, 1:-1].double().numpy()
    ours_WC = model.part("names").score([row]).logits
    np.testing.assert_allclose(ours_WC, theirs_WC, rtol=0, atol=1e-5)


def test_rows_with_labels_and_tags_are_evaluated_at_once(both):
    model, _ = both
    data = [{**row, "label": "ab"[number % 2]} for number, row in enumerate(tagged(12))]
    report = model.evaluate(data, resamples=5)
    alone = model.part("names").evaluate(data, resamples=5)
    assert report["names"].estimates == alone.estimates
    assert report.tokens_read == alone.tokens_read
    spoken = [{"text": " ".join(row["tokens"]), "label": row["label"]} for row in data]
    assert (
        report["animal"].to_dict()["accuracy"]
        == model.part("animal").evaluate(spoken, resamples=5).to_dict()["accuracy"]
    )
    assert set(report.to_dict()) == {"animal", "names", "tokens_read"}
    assert "names: " in report.summary()


def test_a_tagging_task_can_be_added_to_tasks_that_are_there(base):
    label_only = {"animal": TASKS["animal"], "again": TASKS["animal"]}
    model = fitted(base, label_only)
    head = model.part("animal").fitted.backend.head_model.head
    still = {**QUICK, "learning_rate": 1e-9, "optimizer": AdamW(weight_decay=0.0)}
    model.fit(TASKS, **still)
    assert list(model.parts) == ["animal", "names"]
    # It is a copy that goes on, so that a training that fails changes nothing.
    torch.testing.assert_close(model.part("animal").fitted.backend.head_model.head.state_dict(), head.state_dict())
    assert model.part("animal").columns == TextColumns()


# --- what makes no sense ---


def test_words_of_two_columns_are_no_one_text(base):
    other = [{"words": row["tokens"], "marks": row["tags"]} for row in tagged()]
    model = fitted(base, {"names": TASKS["names"], "marks": TaggingData(other, tokens="words", tags="marks")}, epochs=1)
    with pytest.raises(InvalidInput, match=r"several columns \(tokens, words\).*Use one task"):
        model.predict("w5")
    assert model.part("marks").predict("w5").tags


def test_a_row_without_words_cannot_be_evaluated(both):
    model, _ = both
    with pytest.raises(InvalidInput, match="tokens"):
        model.evaluate([{"text": "w5", "label": "a", "tags": ["O"]}])


def test_of_a_row_with_words_and_a_text_the_words_are_read(both):
    model, _ = both
    row = {"tokens": ["w9", ",", "w20"], "text": "w10 w20", "label": "a", "tags": ["O"] * 3}
    assert list(model.predict_stream(read_rows([row]))) == model.predict([row["tokens"]])
    assert model.evaluate([row], resamples=2).reports["animal"].accuracy.value == float(
        model.predict([row["tokens"]])[0]["animal"].label == "a"
    )


def test_a_text_is_a_string_or_words(both):
    model, _ = both
    with pytest.raises(InvalidInput, match="to be a str or a list of str"):
        model.predict([5])
    with pytest.raises(InvalidInput, match="empty or only white space"):
        model.predict([" "])


def test_a_problem_in_the_data_names_its_task(base):
    bad = [{"tokens": ["w5", "w6"], "tags": ["O"]}]
    with pytest.raises(InvalidInput, match=r"task 'names': .*2 words"):
        fitted(base, {**TASKS, "names": TaggingData(bad)})


def test_a_scheme_that_was_altered_is_noticed(both, tmp_path):
    import shutil

    copy = shutil.copytree(both[1], tmp_path / "copy")
    stored = json.loads((copy / "bothways.json").read_text())
    stored["heads"][1]["scheme"] = "SPOKEN"
    (copy / "bothways.json").write_text(json.dumps(stored))
    with pytest.raises(CorruptCheckpoint):
        MultiTask.from_pretrained(copy, device="cpu")
