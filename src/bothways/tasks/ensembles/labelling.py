"""Members that label texts, or pairs of texts, or give them numbers.

Shapes: M members, N texts, C outputs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.data import Row, Source
from bothways.data.windows import digest_of
from bothways.evaluation import ConformalInterval, ConformalSets, Outcomes, Temperature
from bothways.tasks.columns import PairColumns, TextColumns
from bothways.tasks.embedding.data import LabelledTexts
from bothways.tasks.embedding.few_shot import FewShotClassifier
from bothways.tasks.ensembles.combining import (
    Combination,
    Disagreement,
    Method,
    Spread,
    calibrated_logits,
    check_method,
    disagreements,
    fitted_temperature,
)
from bothways.tasks.ensembles.committee import most, places_of, texts_part
from bothways.tasks.ensembles.files import combination_settings, stored_combination, stored_promise
from bothways.tasks.ensembles.results import Together
from bothways.tasks.ensembles.stacking import fit_combination
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.judging import learn_promise, outside_of, promise_of, promised
from bothways.tasks.labelling.pairs import PairClassifier
from bothways.tasks.predictions import Classification, Prediction, Reading, Score, texts_read
from bothways.tasks.stored import Extras, stored_temperature
from bothways.tasks.targets import Logits, Target, Truth, labelled_texts
from bothways.text.texts import Text

LabelModel: TypeAlias = TextClassifier | FewShotClassifier | PairClassifier
LabelColumns: TypeAlias = TextColumns | LabelledTexts | PairColumns


@dataclass(frozen=True, slots=True)
class ScoredText:
    """What is said of a text before it is decided.

    Attributes:
        logits_C: Logits, with the calibration of whoever says it in them.
        reading: How much of the text was read.
        outside: Share of those who say it, among the members that can tell, that call the text unlike what they were
            trained on; None where none can.
    """

    logits_C: Logits
    reading: Reading
    outside: float | None = None


@dataclass(frozen=True, slots=True)
class LabelCommittee:
    """Models that label texts or pairs, see `bothways.tasks.ensembles.committee.Committee`.

    Attributes:
        models: The members.
        places: Where each of them has the labels of the first one.
        combination: How their answers become one.
        temperature: What calibrates the result; None without.
        conformal: What promises a coverage; None without.
    """

    models: tuple[LabelModel, ...]
    places: tuple[NDArray[np.int64], ...]
    combination: Combination
    temperature: Temperature | None = None
    conformal: ConformalSets | ConformalInterval | None = None

    @classmethod
    def of(cls, members: Sequence[tuple[Path, LabelModel]], combination: Combination) -> Self:
        """Gather models of one task and kind.

        Raises:
            InvalidInput: They have different labels.
        """
        first = members[0][1]
        labels, name = first.trusted.target.labels, first.trusted.name
        places = tuple(places_of(labels, name, model.trusted.target.labels, folder) for folder, model in members)
        return cls(tuple(model for _, model in members), places, combination)

    @property
    def target(self) -> Target:
        """What they predict, with the labels in the order of the first member."""
        return self.models[0].trusted.target

    @property
    def knows_its_domain(self) -> bool:
        """Whether some member tells texts from elsewhere."""
        return any(model.trust.border is not None for model in self.models)

    def check_method(self, method: str) -> None:
        """Refuse a way to combine that the target does not have."""
        check_method(method, self.target)

    def columns_of(self, member: int) -> LabelColumns:
        """Where a member has its texts, or pairs: each as it was trained."""
        return self.models[member].columns

    def asked(self, row: Row, columns: LabelColumns) -> Text:
        """The text, or pair, of a row."""
        return columns.inputs.read(row)

    def given(self, what: Any) -> tuple[Sequence[Text], bool]:  # noqa: ANN401 (as `predict` of the members)
        """Texts, or pairs, and whether it was one alone."""
        return self.models[0].given(what)

    def labelled(self, data: Source, columns: LabelColumns) -> tuple[list[Text], Truth]:
        """Texts, or pairs, and their encoded labels."""
        return labelled_texts(data, columns.inputs, columns.label, self.target)

    def part(self, items: Sequence[Text], truth: Truth) -> dict[str, object]:
        """What a card says of labelled texts."""
        return {**texts_part(items), "labels_sha256": digest_of(truth)}

    def said(
        self, member: int, items: Iterable[Text], description: str, total: int | None, show: bool | None
    ) -> Iterator[ScoredText]:
        """What one member says of texts."""
        model, places, classes = self.models[member], self.places[member], self.target.outputs
        border = model.trust.border
        for row_K, reading in model.said(items, description, total, show):
            logits_1C = calibrated_logits(self.target, row_K[None, :classes], model.calibration)
            outside = None if border is None else float(outside_of(border, row_K, classes)[1])
            yield ScoredText(logits_1C[0, places], reading, outside)

    def combined(self, said: Sequence[ScoredText]) -> ScoredText:
        """What all say of a text together."""
        combined_1C = self.combination.combine(self.target, _logits([said]))
        votes = [each.outside for each in said if each.outside is not None]
        outside = float(np.mean(votes)) if votes else None
        return ScoredText(combined_1C[0], most([each.reading for each in said]), outside)

    def promise(self, coverage: float | None) -> Callable[[Together], Together]:
        """What adds the labels, or the interval around a number, that hold the truth this often."""
        promise = promise_of(self.conformal, coverage)

        def added(answer: Together) -> Together:
            return promised(answer, promise) if isinstance(answer, Classification | Score) else answer

        return added

    def predicted(self, combined: ScoredText) -> Prediction:
        """The label, labels or number; outside of the domain is what most members call so."""
        found = self.target.predict(combined.logits_C, self.temperature, combined.reading)
        if combined.outside is None or not isinstance(found, Classification):
            return found
        return replace(found, outside=combined.outside > 0.5, outside_score=combined.outside)

    def disagreement(self, said: Sequence[ScoredText], combined: ScoredText) -> Disagreement | Spread:
        """How far the members are apart on a text."""
        return disagreements(self.target, _logits([said]), combined.logits_C[None])[0]

    def fitted(self, method: Method, said: Sequence[Sequence[ScoredText]], truth: Truth) -> tuple[Self, dict[str, Any]]:
        """Combined and calibrated on held-out texts."""
        fit = fit_combination(self.target, method, self.combination, _logits(said), truth)
        temperature = fitted_temperature(self.target, fit.unseen_NC, truth)
        conformal = learn_promise(self.target, fit.unseen_NC, truth, "temperature", seed=0)
        made = replace(self, combination=fit.combination, temperature=temperature, conformal=conformal)
        return made, {**fit.card, "coverage_from_rows": None if conformal is None else len(conformal.held_out_M)}

    def outcomes(self, combined: Sequence[ScoredText], truth: Truth) -> Outcomes:
        """Return the results of the members together."""
        logits_NC = np.stack([each.logits_C for each in combined])
        outcomes = self.target.outcomes(logits_NC, truth, self.temperature)
        return replace(outcomes, tokens_read=texts_read([each.reading for each in combined]))

    def alone(self, said: Sequence[ScoredText], truth: Truth) -> Mapping[str, float]:
        """Metrics of what one member says."""
        return self.target.validate(np.stack([each.logits_C for each in said]), truth).metrics

    def facts(self) -> dict[str, object]:
        """Method, calibration and labels."""
        settings = combination_settings(self.combination, self.temperature)
        return {**settings, "labels": list(self.target.labels)}

    def stored(self) -> dict[str, object]:
        """Method, calibration, and scores of the held-out rows."""
        settings = combination_settings(self.combination, self.temperature)
        return {**settings, "conformal": None if self.conformal is None else self.conformal.held_out_M.tolist()}

    def restored(self, stored: Extras) -> Self:
        """With the method and the calibration that were stored."""
        combination = stored_combination(stored, len(self.models), self.target.outputs)
        conformal = stored_promise(stored, self.target)
        return replace(self, combination=combination, temperature=stored_temperature(stored), conformal=conformal)


def _logits(said: Sequence[Sequence[ScoredText]]) -> NDArray[np.float64]:
    """Of each member (M, N, C), given for each text what each member says."""
    return np.stack([[each.logits_C for each in text] for text in said], axis=1)
