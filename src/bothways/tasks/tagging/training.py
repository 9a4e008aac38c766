"""Tagged texts as the training loop sees them, and how good a tagger is on held-out ones.

Shapes: M words of several texts, C tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.data import Source, TaggedRow, read_tagged
from bothways.data.windows import digest_of
from bothways.evaluation import apply_temperature, negative_log_likelihood, share_error, span_counts
from bothways.evaluation.tag_schemes import Scheme, check_scheme
from bothways.tasks.card import DataUsed, data_part
from bothways.tasks.columns import TagColumns
from bothways.tasks.fitting import FitPlan
from bothways.tasks.objective import HeadModel, WindowObjective, window_scores
from bothways.tasks.opening import OpenedModel
from bothways.tasks.splits import hold_out
from bothways.tasks.tagging.tag_set import TagSet, data_scheme, tagged_in
from bothways.tasks.tagging.word_windows import TagAnswers, WordWindows
from bothways.text import ReadWords
from bothways.training.objective import Validation


@dataclass(frozen=True, slots=True)
class TaggedTexts:
    """Tokenised texts, and the numbers of their words' tags.

    Attributes:
        windows: The texts.
        truth: For each text the number of each word's tag.
    """

    windows: WordWindows
    truth: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, opened: OpenedModel, tag_set: TagSet, rows: Sequence[TaggedRow]) -> "TaggedTexts":
        """Tokenise rows.

        Raises:
            InvalidInput: A tag is none of the set's; the message names the row.
        """
        read = [ReadWords.of(row.words) for row in rows]
        store = opened.stored([each.text for each in read], offsets=True)
        return cls(WordWindows.of(store, read), tuple(tag_set.encode(rows)))

    @property
    def truth_M(self) -> NDArray[np.int64]:
        """The tags of all words, end to end."""
        return np.concatenate(self.truth)

    @property
    def part(self) -> dict[str, object]:
        """What a card says of the data: texts and words, and SHA-256 of their tokens and of the numbers of tags."""
        lengths_N = np.array([len(each) for each in self.truth])
        tags = {"words": len(self.truth_M), "tags_sha256": digest_of(lengths_N, self.truth_M)}
        return {**data_part(len(self.truth), self.windows.store), **tags}

    def scores(self, model: HeadModel, tag_set: TagSet, tokens: int) -> NDArray[np.float64]:
        """What a model says of all words, end to end (M, C)."""
        return self.windows.scores(window_scores(model, self.windows.store, tokens), tag_set.unseen_C)


@dataclass(frozen=True, slots=True)
class TaggedData:
    """Data for training, tokenised.

    Attributes:
        tag_set: The tags and their scheme.
        training: Texts to learn from.
        held: Texts to validate and calibrate on.
        used: What the card says of them.
    """

    tag_set: TagSet
    training: TaggedTexts
    held: TaggedTexts
    used: DataUsed


def read_tagged_data(
    opened: OpenedModel,
    train_data: Source,
    validation: Source | None,
    columns: TagColumns,
    scheme: Scheme | None,
    seed: int,
    before: TagSet | None = None,
) -> TaggedData:
    """Read and tokenise data; without validation data a tenth is held out, drawn with ``seed``.

    Texts of which the tokenizer leaves nothing are not learnt from. Tags that are those of ``before``, what the model
    was trained to tell apart, stand in its order.

    Raises:
        InvalidInput: The data are not usable; the message names the row.
    """
    rows = list(read_tagged(train_data, columns.tokens, columns.tags))
    found = data_scheme(rows, check_scheme(scheme) if scheme else None)
    wanted: Scheme = "BIO" if found == "IOB1" else found
    rows = tagged_in(rows, found, wanted)
    if validation is None:
        rows, held_rows = hold_out(
            rows, 0.1, seed, lambda tags: tuple(set(tags)), "tag", group=lambda row: row.words.text
        )
    else:
        held_rows = read_in(validation, columns, scheme, wanted)
    tag_set = TagSet.of_rows(rows, wanted).continued(before)
    training, held = (TaggedTexts.of(opened, tag_set, each) for each in (rows, held_rows))
    if training.windows.unread:
        rows = [row for number, row in enumerate(rows) if number not in training.windows.unread]
        training = TaggedTexts.of(opened, tag_set, rows)
    used = DataUsed(columns, training.part, held.part, split=validation is None)
    return TaggedData(tag_set, training, held, used)


def read_in(data: Source, columns: TagColumns, scheme: Scheme | None, wanted: Scheme) -> list[TaggedRow]:
    """Rows with tags in the scheme that is wanted, from those of another, or of one that is guessed."""
    rows = list(read_tagged(data, columns.tokens, columns.tags))
    return tagged_in(rows, data_scheme(rows, check_scheme(scheme) if scheme else None, wanted), wanted)


def tag_objective(
    model: HeadModel, tag_set: TagSet, training: TaggedTexts, held: TaggedTexts, plan: FitPlan
) -> WindowObjective:
    """Training on tagged texts, judged on others."""
    answers, held_answers = TagAnswers(training.windows, training.truth), TagAnswers(held.windows, held.truth)

    def validate() -> Validation:
        return validated(tag_set, held.scores(model, tag_set, plan.settings.tokens), held.truth)

    return WindowObjective(
        model,
        training.windows.store,
        answers,
        validate,
        batch_size=plan.batch_size,
        tokens=plan.settings.tokens,
        seed=plan.seed,
        identity={
            "validation data": f"{held.windows.store.digest} {held_answers.digest}",
            "scheme": tag_set.scheme,
            "labels": " ".join(tag_set.labels),
        },
    )


def validated(tag_set: TagSet, scores_MC: NDArray[np.float64], truths: Sequence[NDArray[np.int64]]) -> Validation:
    """Metrics on held-out texts; the score is span F1, of plain tags accuracy.

    Args:
        tag_set: The tags.
        scores_MC: Of the words of all texts, end to end.
        truths: For each text the numbers of its words' tags.
    """
    truth_M, lengths = np.concatenate(truths), [len(each) for each in truths]
    predicted_M = tag_set.decode(scores_MC, lengths)
    nll = negative_log_likelihood(truth_M, apply_temperature(scores_MC, 1.0))
    metrics = {"accuracy": float((predicted_M == truth_M).mean()), "nll": nll}
    if tag_set.scheme == "plain":
        return Validation(metrics, metrics["accuracy"], share_error(metrics["accuracy"], len(truth_M)))
    truth, predicted = tag_set.spans_of_texts(truth_M, lengths), tag_set.spans_of_texts(predicted_M, lengths)
    right, there, said = span_counts(truth, predicted, tag_set.span_labels).sum(axis=(0, 2)).tolist()
    span_f1 = 2 * right / max(1, there + said)
    return Validation({"span_f1": span_f1, **metrics}, span_f1, share_error(span_f1, (there + said) / 2))
