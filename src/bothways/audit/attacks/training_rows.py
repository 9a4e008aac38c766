"""Attacked rows to train with: the remedy of adversarial training (Goodfellow et al. 2015, arXiv:1412.6572)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bothways.audit.answering import answers
from bothways.audit.attacks.edits import CharacterEdits
from bothways.audit.attacks.search import Recipe, attack_texts
from bothways.audit.context import Context

if TYPE_CHECKING:
    from bothways.data import Source
    from bothways.tasks import TextClassifier


def adversarial_rows(
    classifier: "TextClassifier", data: "Source", recipe: Recipe | None = None, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Return rows of attacked texts with their right labels, to be added to the training data.

    >>> more = adversarial_rows(classifier, rows)  # doctest: +SKIP
    >>> classifier.fit([*rows, *more])  # doctest: +SKIP

    Args:
        classifier: A trained classifier of texts, each with one label.
        data: A file or rows with labels.
        recipe: The attack; `CharacterEdits` when None.
        seed: Draws edits.

    Returns:
        One row for each text that could be edited, whether or not its answer turned.

    Raises:
        NeedUnmet: The rows have no labels that the classifier knows, or it is another kind of model.
    """
    from bothways.data import read_rows

    context = Context(classifier.name, classifier, list(read_rows(data)), seed=seed, time_limit=float("inf"))
    labelled, columns = context.labelled, context.classifier.columns
    attacks = attack_texts(
        lambda texts: answers(context, context.classifier, texts).probabilities_NC,
        labelled.texts,
        labelled.labels_N.tolist(),
        recipe or Recipe(CharacterEdits()),
        context.rng("adversarial_rows"),
    )
    labels: Sequence[str] = classifier.labels
    return [
        columns.labelled_row(each.draft.text, labels[int(label)])
        for each, label in zip(attacks, np.asarray(labelled.labels_N), strict=True)
        if each.draft.changed
    ]
