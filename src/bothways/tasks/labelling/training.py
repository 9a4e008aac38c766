"""What labelled texts, or pairs, become before they are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bothways.data import Example, Source, read_examples
from bothways.tasks.card import DataUsed
from bothways.tasks.columns import PairColumns, TextColumns
from bothways.tasks.fitting import FitPlan
from bothways.tasks.merging import Merge
from bothways.tasks.objective import HeadModel, LabelledWindows, TextAnswers, WindowObjective, predict_logits
from bothways.tasks.opening import OpenedModel
from bothways.tasks.splits import hold_out
from bothways.tasks.targets import Regression, Target, TargetKind, continued, converter, target_of
from bothways.training.objective import Validation


@dataclass(frozen=True, slots=True)
class LabelledData:
    """Data for training, tokenised.

    Attributes:
        target: What is predicted.
        training: Texts to learn from.
        held: Texts to validate and calibrate on.
        used: What the card says of them.
    """

    target: Target
    training: LabelledWindows
    held: LabelledWindows
    used: DataUsed

    @property
    def unit(self) -> float:
        """What a validation score is measured in: shares of 1, or squared units of the numbers to predict."""
        # Of what is learnt from, which is more: a single number that is held out has no variance.
        return float(np.var(self.training.truth)) or 1.0 if isinstance(self.target, Regression) else 1.0


def read_labelled(
    opened: OpenedModel,
    train_data: Source,
    validation: Source | None,
    columns: TextColumns | PairColumns,
    kind: TargetKind,
    seed: int,
    before: Target | None = None,
) -> LabelledData:
    """Read and tokenise data; without validation data a tenth is held out, drawn with ``seed``.

    Rows with the same text stay together, and so do pairs with the same first text. Labels that are those of
    ``before``, what the model was trained to tell apart, stand in its order.

    Raises:
        InvalidInput: The data are not usable; the message names the row.
    """
    variant = converter(kind)

    def read(source: Source) -> list[Example[Any]]:
        return read_examples(source, text=columns.inputs, label=columns.label, convert=variant.convert)

    examples = read(train_data)
    if validation is None:
        # The same text on both sides would give away what is asked of it.
        first = isinstance(columns, PairColumns)
        examples, held_out = hold_out(
            examples, 0.1, seed, variant.names, group=lambda each: each.text[0] if first else each.text
        )
    else:
        held_out = read(validation)
    target = continued(target_of(kind, examples), before)

    def labelled(listed: Sequence[Example[Any]]) -> LabelledWindows:
        return LabelledWindows(opened.stored([example.text for example in listed]), target.encode(listed))

    training, held = labelled(examples), labelled(held_out)
    used = DataUsed(columns, training.part, held.part, split=validation is None)
    return LabelledData(target, training, held, used)


def text_objective(model: HeadModel, data: LabelledData, merge: Merge, plan: FitPlan) -> WindowObjective:
    """The training of an encoder and a head on labelled texts, validated after each epoch on those held out."""
    target, held, tokens = data.target, data.held, plan.settings.tokens
    # Attention begins as the mean, and is learnt when encoder and head are.
    merging: Merge = "mean" if merge == "attention" else merge

    def validate() -> Validation:
        return target.validate(predict_logits(model, held.store, tokens, merging), held.truth)

    return WindowObjective(
        model,
        data.training.store,
        TextAnswers(target, data.training.truth, data.training.store),
        validate,
        batch_size=plan.batch_size,
        tokens=tokens,
        seed=plan.seed,
        identity={
            "validation data": held.digest,
            "target": target.kind,
            "labels": ", ".join(map(repr, target.labels)),
            "merge": merge,
        },
    )
