"""Tags of spans that are almost written as schemes write them: ``b-per``, ``B_PER``, ``PER-B`` for ``B-PER``."""

import re
from collections.abc import Collection

# A prefix in letters of any size with some sign behind it, or the same at the end of the tag.
_FORMS = (
    re.compile(r"(?P<prefix>[BIESLU])[-_:/|.](?P<label>.+)", re.IGNORECASE),
    re.compile(r"(?P<label>.+)[-_:/|.](?P<prefix>[BIESLU])", re.IGNORECASE),
)


def meant(tags: Collection[str], outside: str) -> tuple[str, str] | None:
    """One of the tags that seem to be meant for spans, and how schemes write it; None where they do not seem so.

    They do where one tag is that for words outside of spans, in any letters, all others have the same of the forms
    above, and some of them begin a span or go on with it. Parts of speech have no such tags.

    Args:
        tags: All tags, of which no scheme knows a prefix.
        outside: The tag for words outside of spans.

    >>> meant(["PER-B", "PER-I", "o"], "O")
    ('PER-B', 'B-PER')
    >>> meant(["NN", "VB-D", "O"], "O")
    """
    others = [tag for tag in tags if tag.upper() != outside]
    if len(others) == len(tags):
        return None
    for form in _FORMS:
        found = [match for match in map(form.fullmatch, others) if match]
        if len(found) == len(others) and {match["prefix"].upper() for match in found} & {"B", "I"}:
            return found[0].string, f"{found[0]['prefix'].upper()}-{found[0]['label']}"
    return None
