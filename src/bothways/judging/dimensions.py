"""The three dimensions that a judge decides, and the pair of texts that it reads for each. Loads no torch.

They are those of ARES (Saad-Falcon et al. 2023, arXiv:2311.09476).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from bothways.choices import JudgeDimension
from bothways.errors import InvalidInput

if TYPE_CHECKING:
    from bothways.judging.triples import Triple

Part: TypeAlias = Literal["query", "passage", "answer"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One question about a (query, passage, answer) triple.

    Attributes:
        name: In files and on the command line.
        question: What label 1 says yes to.
        first: Parts of the first text that the judge reads, joined by a space.
        second: Part of the second text, which is cut into windows where it is long.
    """

    name: JudgeDimension
    question: str
    first: tuple[Part, ...]
    second: Part

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts that are read."""
        return (*self.first, self.second)

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    def pair(self, triple: "Triple") -> tuple[str, str]:
        """Return the two texts that the judge reads."""
        texts = {"query": triple.query, "passage": triple.passage, "answer": triple.answer}
        return " ".join(texts[part] for part in self.first), texts[self.second]


DIMENSIONS: Mapping[JudgeDimension, Dimension] = {
    each.name: each
    for each in (
        Dimension("context_relevance", "Does the passage help to answer the query?", ("query",), "passage"),
        Dimension("answer_faithfulness", "Does the passage support the answer?", ("query", "answer"), "passage"),
        Dimension("answer_relevance", "Does the answer respond to the query?", ("query",), "answer"),
    )
}


def find_dimension(name: str) -> Dimension:
    """Return a dimension by its name.

    Raises:
        InvalidInput: There is no such dimension.
    """
    for each in DIMENSIONS.values():
        if each.name == name:
            return each
    raise InvalidInput(f"expected dimension to be one of {', '.join(get_args(JudgeDimension))}, got {name!r}.")
