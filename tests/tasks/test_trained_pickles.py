"""Models that were trained in memory pickle whole: what they predict needs no folder."""

import pickle
import shutil

import pytest

from bothways.errors import UnknownModel
from bothways.tasks import SentenceEmbedder, TextClassifier

TEXTS = ["w5 w6 w7", "w8 w9", "w10 w5 w6 w11"]
ROWS = [{"text": f"w{5 + number % 2} w{10 + number}", "label": "ab"[number % 2]} for number in range(12)]
PAIRS = [{"text_a": f"w{5 + number}", "text_b": f"w{6 + number}", "score": number / 12} for number in range(12)]


@pytest.mark.parametrize(
    ("task", "rows"),
    [(TextClassifier, ROWS), (SentenceEmbedder, PAIRS)],
    ids=["text", "vectors"],
)
def test_a_trained_model_predicts_the_same_without_the_folder_it_started_from(base, task, rows):
    model = task.from_pretrained(base, device="cpu")
    model.fit(rows, validation=rows, epochs=1, show_progress=False)
    pickled = pickle.dumps(model)
    shutil.rmtree(base)
    back = pickle.loads(pickled)
    if task is SentenceEmbedder:
        assert (back.encode(TEXTS) == model.encode(TEXTS)).all()
    else:
        assert back.predict(TEXTS) == model.predict(TEXTS)
        assert pickle.loads(pickle.dumps(back)).predict(TEXTS) == model.predict(TEXTS)


def test_a_training_that_begins_a_head_needs_the_folder_again(base):
    model = TextClassifier.from_pretrained(base, device="cpu")
    model.fit(ROWS, validation=ROWS, epochs=1, show_progress=False)
    pickled = pickle.dumps(model)
    others = [{**row, "label": row["label"] * 2} for row in ROWS]
    pickle.loads(pickled).fit(others, validation=others, epochs=1, show_progress=False)
    shutil.rmtree(base)
    with pytest.raises(UnknownModel, match="Put the folder back"):
        pickle.loads(pickled).fit(others, validation=others, epochs=1, show_progress=False)
