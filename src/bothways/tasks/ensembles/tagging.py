"""Members that tag words: the words of a text are to them what texts are to members that label texts.

Shapes: m members, W words of one text, M words of several texts, C tags.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bothways.data import Row, Source, given_words
from bothways.data.windows import digest_of
from bothways.errors import InvalidInput
from bothways.evaluation import Outcomes, Temperature, fit_temperature
from bothways.tasks.columns import TagColumns
from bothways.tasks.ensembles.combining import (
    Combination,
    Disagreement,
    Method,
    calibrated_logits,
    check_method,
    differing,
    mutual_information,
)
from bothways.tasks.ensembles.committee import most, no_promise, places_of, texts_part
from bothways.tasks.ensembles.files import combination_settings, stored_combination
from bothways.tasks.ensembles.results import Together
from bothways.tasks.ensembles.stacking import fit_combination
from bothways.tasks.predictions import texts_read
from bothways.tasks.stored import Extras, stored_temperature
from bothways.tasks.tagging.predictions import ScoredWords, Tagging
from bothways.tasks.tagging.reading import decided
from bothways.tasks.tagging.tag_set import TagSet
from bothways.tasks.tagging.tagger import Given, TextTagger
from bothways.tasks.tagging.training import validated
from bothways.tasks.tagging.word_labeller import word_outcomes
from bothways.tasks.targets import SingleLabel
from bothways.text import Words

# For each text the numbers of its words' tags.
TrueTags = Sequence[NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class TagCommittee:
    """Models that tag words, see `bothways.tasks.ensembles.committee.Committee`.

    What the members say of each word is combined, and the tags of a text are decoded from the result, so no broken span
    comes out.

    Attributes:
        models: The members.
        places: Where each of them has the tags of the first one.
        combination: How their answers become one.
        temperature: What calibrates the result; None without.
    """

    models: tuple[TextTagger, ...]
    places: tuple[NDArray[np.int64], ...]
    combination: Combination
    temperature: Temperature | None = None

    @classmethod
    def of(cls, members: Sequence[tuple[Path, TextTagger]], combination: Combination) -> Self:
        """Gather taggers.

        Raises:
            InvalidInput: They have different tags, or write spans in different schemes.
        """
        (_, first), places = members[0], []
        ours = first.labeller.tag_set
        for folder, model in members:
            theirs = model.labeller.tag_set
            if theirs.scheme != ours.scheme:
                raise InvalidInput(
                    f"members of an ensemble write spans in the same scheme, but {str(folder)!r} has {theirs.scheme}, "
                    f"against {ours.scheme} of {first.model.name!r}."
                )
            places.append(places_of(ours.labels, first.model.name, theirs.labels, folder))
        return cls(tuple(model for _, model in members), tuple(places), combination)

    @property
    def tag_set(self) -> TagSet:
        """The tags in the order of the first member, and their scheme."""
        return self.models[0].labeller.tag_set

    @property
    def target(self) -> SingleLabel:
        """What is predicted for a word by itself."""
        return SingleLabel(self.tag_set.labels)

    @property
    def knows_its_domain(self) -> bool:
        """No member tells texts from elsewhere."""
        return False

    def check_method(self, method: str) -> None:
        """Refuse a way to combine that there is not."""
        check_method(method, self.target)

    def columns_of(self, _: int) -> TagColumns:
        """Where the first member has the words: those of a row are tagged by all."""
        return self.models[0].columns

    def asked(self, row: Row, columns: TagColumns) -> Words:
        """The words of a row, or of its text."""
        return given_words(row, columns.tokens, columns.text)

    def given(self, what: str | Sequence[Given]) -> tuple[list[Words], bool]:
        """The words of texts, and whether it was one alone."""
        return self.models[0].given(what)

    def labelled(self, data: Source, columns: TagColumns) -> tuple[list[Words], TrueTags]:
        """The words of texts, and the numbers of their tags."""
        rows = self.models[0].labeller.read(data, columns, None)
        return [row.words for row in rows], self.tag_set.encode(rows)

    def part(self, items: Sequence[Words], truth: TrueTags) -> dict[str, object]:
        """What a card says of tagged texts."""
        words = [[text.text[start:end] for start, end in text.spans] for text in items]
        truth_M = np.concatenate(truth)
        return {**texts_part(words), "words": len(truth_M), "tags_sha256": digest_of(truth_M)}

    def said(
        self, member: int, items: Iterable[Words], description: str, total: int | None, show: bool | None
    ) -> Iterator[ScoredWords]:
        """What one member says of the words of texts: logarithms of probabilities."""
        labeller, places = self.models[member].labeller, self.places[member]
        for scored in labeller.scored(items, description, total, show):
            scores_WC = calibrated_logits(self.target, scored.scores_WC, labeller.temperature)
            yield replace(scored, scores_WC=scores_WC[:, places])

    def combined(self, said: Sequence[ScoredWords]) -> ScoredWords:
        """What all say of the words of a text together."""
        scores_WC = self.combination.combine(self.target, _scores([said]))
        return ScoredWords(said[0].words, scores_WC, most([each.reading for each in said]))

    def promise(self, coverage: float | None) -> Callable[[Together], Together]:
        """Of the tags of words, nothing for any coverage."""
        return no_promise(coverage, "the tags of words")

    def predicted(self, combined: ScoredWords) -> Tagging:
        """The best tags of the text that make no broken span."""
        return next(decided(iter([combined]), self.tag_set, self.temperature))

    def disagreement(self, said: Sequence[ScoredWords], combined: ScoredWords) -> Disagreement:
        """How far the members are apart on a word of the text, in the mean over its words, each by itself."""
        scores_mWC = _scores([said])
        differing_W = differing(self.target, scores_mWC, combined.scores_WC)
        return Disagreement(float(differing_W.mean()), float(mutual_information(self.target, scores_mWC).mean()))

    def fitted(
        self, method: Method, said: Sequence[Sequence[ScoredWords]], truth: TrueTags
    ) -> tuple[Self, dict[str, Any]]:
        """Combined and calibrated on the words of held-out texts."""
        truth_M, text_M = np.concatenate(truth), np.repeat(np.arange(len(truth)), [len(each) for each in truth])
        fit = fit_combination(self.target, method, self.combination, _scores(said), truth_M, text_M)
        temperature = Temperature(fit_temperature(fit.unseen_NC, truth_M))
        return replace(self, combination=fit.combination, temperature=temperature), fit.card

    def outcomes(self, combined: Sequence[ScoredWords], truth: TrueTags) -> Outcomes:
        """Return the results of the members together."""
        scores_MC = np.concatenate([each.scores_WC for each in combined])
        outcomes = word_outcomes(self.tag_set, scores_MC, truth, self.temperature)
        return replace(outcomes, tokens_read=texts_read([each.reading for each in combined]))

    def alone(self, said: Sequence[ScoredWords], truth: TrueTags) -> Mapping[str, float]:
        """Metrics of what one member says."""
        return validated(self.tag_set, np.concatenate([each.scores_WC for each in said]), truth).metrics

    def facts(self) -> dict[str, object]:
        """Method, calibration, labels and scheme."""
        return {**self.stored(), "labels": list(self.tag_set.labels), "scheme": self.tag_set.scheme}

    def stored(self) -> dict[str, object]:
        """Method and calibration."""
        return combination_settings(self.combination, self.temperature)

    def restored(self, stored: Extras) -> Self:
        """With the method and the calibration that were stored."""
        combination = stored_combination(stored, len(self.models), self.target.outputs)
        return replace(self, combination=combination, temperature=stored_temperature(stored))


def _scores(said: Sequence[Sequence[ScoredWords]]) -> NDArray[np.float64]:
    """Of each member, of the words of all texts end to end (m, M, C), given for each text what each member says."""
    return np.stack([np.concatenate([each.scores_WC for each in member]) for member in zip(*said, strict=True)])
