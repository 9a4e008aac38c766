"""Multiple choice: selects the ending or answer that fits a context (SWAG, Zellers et al. 2018)."""

from bothways.tasks.multiple_choice.outputs import Choices, ChosenAnswer
from bothways.tasks.multiple_choice.spec import MULTIPLE_CHOICE
from bothways.tasks.task import Task


class MultipleChoice(Task[Choices, ChosenAnswer]):
    """Chooses which of several endings or answers fits a context, with calibrated probabilities.

    >>> chooser = MultipleChoice.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> chooser.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> chooser.predict(("She opened the fridge and", ["took out the milk.", "flew away."])).index  # doctest: +SKIP
    0
    """

    spec = MULTIPLE_CHOICE
