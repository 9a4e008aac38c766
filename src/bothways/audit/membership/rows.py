"""Members and non-members: rows that a model was trained on, and rows of the same kind that it never met."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answering import drawn
from bothways.audit.context import Context, NeedUnmet, Undecided
from bothways.errors import InvalidInput

_MOST = 300
FEWEST = 20

WANTED = (
    "non-members: rows of the same kind that the model was not trained on. Give them with --non-members, and the rows "
    "that it was trained on with --data."
)


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Texts of both kinds, members first.

    Attributes:
        texts: The N texts.
        labels_N: Indices of their labels; None for a model without labels.
        member_N: Which are members.
        shared: Non-members that were left out because they are members, too.
    """

    texts: tuple[str, ...]
    labels_N: NDArray[np.int64] | None
    member_N: NDArray[np.bool_]
    shared: int


def sides(context: Context, rng: np.random.Generator, *, labelled: bool) -> Sides:
    """Return members and non-members, as many as can be afforded.

    Raises:
        NeedUnmet: There are no non-members, or rows cannot be read.
        Undecided: There are too few of one kind.
    """
    given = context.settings.get("non_members")
    if given is None:
        raise NeedUnmet(WANTED)
    from bothways.data import read_rows

    members, their_labels = _read(context, context.rows or (), labelled=labelled)
    others, other_labels = _read(context, list(read_rows(given)), labelled=labelled)
    known = {text.strip() for text in members}
    apart = [number for number, text in enumerate(others) if text.strip() not in known]
    shared = len(others) - len(apart)
    inside, outside = drawn(len(members), _MOST, rng), np.array(apart, dtype=np.int64)[drawn(len(apart), _MOST, rng)]
    if min(len(inside), len(outside)) < FEWEST:
        raise Undecided(
            f"expected at least {FEWEST} members and {FEWEST} non-members, got {len(inside)} and {len(outside)}"
            + (f" ({shared} rows of the non-members are members)." if shared else ".")
        )
    texts = tuple([members[number] for number in inside] + [others[number] for number in outside])
    labels_N = None
    if their_labels is not None and other_labels is not None:
        labels_N = np.concatenate([their_labels[inside], other_labels[outside]])
    return Sides(texts, labels_N, np.arange(len(texts)) < len(inside), shared)


def _read(context: Context, rows: Any, *, labelled: bool) -> tuple[list[str], NDArray[np.int64] | None]:  # noqa: ANN401
    """Return texts that are not blank, and the indices of their labels."""
    try:
        if not labelled:
            return [text for text in (str(context.reader.read(row)) for row in rows) if text.strip()], None
        outputs = context.classifier.outputs
        examples = [each for each in outputs.read(rows, context.reader) if each.text.strip()]
        return [each.text for each in examples], outputs.encode(examples)
    except InvalidInput as error:
        raise NeedUnmet(f"rows with texts and labels that the model knows: {error}") from error
