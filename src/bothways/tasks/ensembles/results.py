"""What an ensemble says of a row."""

from dataclasses import dataclass
from typing import TypeAlias

from bothways.tasks.answering.answers import QuestionAnswer
from bothways.tasks.ensembles.combining import Disagreement, Spread
from bothways.tasks.predictions import Prediction
from bothways.tasks.tagging.predictions import Tagging

Together: TypeAlias = Prediction | Tagging | QuestionAnswer


@dataclass(frozen=True, slots=True)
class EnsemblePrediction:
    """What the members say together, and how far they are apart.

    Attributes:
        together: The prediction. Its reading is that of the member that needed most windows, or dropped most tokens.
        disagreement: How far the members are apart.
    """

    together: Together
    disagreement: Disagreement | Spread

    def to_dict(self) -> dict[str, object]:
        """As JSON values, flat."""
        return {**self.together.to_dict(), **self.disagreement.to_dict()}
