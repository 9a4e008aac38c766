"""Options of ``fit`` that there are not: named with the method that was called, whatever the task."""

import pytest

from bothways.tasks import (
    FewShotClassifier,
    FillMask,
    MultiTask,
    PairClassifier,
    QuestionAnswerer,
    SentenceEmbedder,
    TextClassifier,
    TextTagger,
)

TASKS = (
    FewShotClassifier,
    FillMask,
    MultiTask,
    PairClassifier,
    QuestionAnswerer,
    SentenceEmbedder,
    TextClassifier,
    TextTagger,
)


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_an_option_that_there_is_not_is_named_with_the_method(base, kind):
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.fit\(\) got an unexpected .* 'learn_rate'") as caught:
        kind.from_pretrained(base, device="cpu").fit([], learn_rate=1e-4)
    assert "learning_rate" in str(caught.value)
    assert "FitPlan" not in str(caught.value)
