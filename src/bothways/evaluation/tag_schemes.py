"""Tag schemes that encode spans of words, such as ``B-PER I-PER O``.

A tag is ``O``, for a word outside of every span, or a prefix and the span's label. Each scheme encodes the spans of a
text in exactly one way, so tags are valid if decoding them to spans and encoding these gives the same tags again. Tags
without a label, such as ``B I O``, encode spans of one nameless type.

===== ==================================================================================================
BIO   B at the first word of a span, I at the others (IOB2; Tjong Kim Sang and Veenstra 1999, cs/9907006)
IOB1  I at all words of a span, but B at the first if a span of the same label ends just before it
BIOES as BIO, but E at the last word, and S at the only one
BILOU as BIOES, with L for E and U for S (Ratinov and Roth 2009)
plain no spans: each tag stands for itself, such as a part of speech
===== ==================================================================================================
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from bothways.choices import Scheme as Scheme
from bothways.errors import InvalidInput

# A prefix and a separator before the label, or a separator and a prefix after it, in upper or lower case.
_FORMS = (
    re.compile(r"(?P<prefix>[BIESLU])[-_:/|.](?P<label>.+)", re.IGNORECASE),
    re.compile(r"(?P<label>.+)[-_:/|.](?P<prefix>[BIESLU])", re.IGNORECASE),
)


def meant(tags: Collection[str], outside: str) -> tuple[str, str] | None:
    """Return an example of a misspelt span tag and its correct spelling; None if no tags look like misspelt span tags.

    They look like span tags if one is ``O`` or ``o``, all others match the same pattern of `_FORMS`, and some have the
    prefix B or I. Parts of speech do not.

    >>> meant(["PER-B", "PER-I", "o"], "O")
    ('PER-B', 'B-PER')
    >>> meant(["NN", "VB-D", "O"], "O")
    """
    others = [tag for tag in tags if tag.upper() != outside]
    if len(others) == len(tags):
        return None
    for form in _FORMS:
        matches = [match for match in map(form.fullmatch, others) if match]
        if len(matches) == len(others) and {match["prefix"].upper() for match in matches} & {"B", "I"}:
            return matches[0].string, f"{matches[0]['prefix'].upper()}-{matches[0]['label']}"
    return None


SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

OUTSIDE = "O"
NAMELESS = "_"
"""The label of spans whose tags have no label, such as ``B``; the same as in seqeval."""

_BARE = re.compile(r"O|[BIESLU]-?", re.IGNORECASE)


class TagSpan(NamedTuple):
    """A span of words."""

    label: str
    start: int  # index of the first word
    end: int  # index of the last word plus 1


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """Prefixes of tags, by the position of the word in its span."""

    first: str
    inside: str
    last: str
    only: str

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.first, self.inside, self.last, self.only)))


_PREFIXES: Mapping[Scheme, _Prefixes] = {
    "BIO": _Prefixes("B", "I", "I", "B"),
    "IOB1": _Prefixes("I", "I", "I", "I"),
    "BIOES": _Prefixes("B", "I", "E", "S"),
    "BILOU": _Prefixes("B", "I", "L", "U"),
}
# Prefixes that always begin a span, and prefixes that always end one.
_BEGINS, _ENDS = frozenset("BSU"), frozenset("ESLU")


def parted(tag: str) -> tuple[str, str]:
    """Split a tag into prefix and label; the prefix may be empty, and the label is `NAMELESS` for a bare prefix.

    >>> parted("B-work-of-art")
    ('B', 'work-of-art')
    >>> parted("NOUN")
    ('', 'NOUN')
    >>> parted("B")
    ('B', '_')
    """
    if len(tag) == 1 and tag in "BIESLU":
        return tag, NAMELESS
    return (tag[0], tag[2:]) if len(tag) > 2 and tag[1] == "-" and "A" <= tag[0] <= "Z" else ("", tag)


def tag_of(prefix: str, label: str) -> str:
    """Return the tag of a prefix and a label, the reverse of `parted`."""
    return prefix if label == NAMELESS else f"{prefix}-{label}"


def bare_spelling(tags: Collection[str], scheme: Scheme | None = None) -> Mapping[str, str]:
    """Return the usual spelling of each tag, if all are bare prefixes such as ``B``, ``b`` or ``B-``; else nothing.

    They need ``B`` or ``I`` among them if no scheme of spans is known, since ``S`` and ``O`` may be classes.

    >>> bare_spelling(["b-", "o"])
    {'b-': 'B', 'o': 'O'}
    """
    spelled = {tag: tag.rstrip("-").upper() for tag in tags if _BARE.fullmatch(tag)}
    known = scheme is not None and scheme != "plain"
    return spelled if len(spelled) == len(set(tags)) and (known or {"B", "I"} & set(spelled.values())) else {}


def spans_of(tags: Sequence[str], scheme: Scheme) -> list[TagSpan]:
    """Return the spans that tags encode, in order; none for plain tags.

    Invalid tags are decoded as in CoNLL's evaluation script: a tag that cannot continue a span begins a new one.

    >>> spans_of(["B-PER", "I-PER", "O", "B-LOC"], "BIO")
    [TagSpan(label='PER', start=0, end=2), TagSpan(label='LOC', start=3, end=4)]
    """
    if scheme == "plain":
        return []
    spans: list[TagSpan] = []
    label, start = None, 0  # of the current span
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            if label is not None:
                spans.append(TagSpan(label, start, place))
            label = None
            continue
        prefix, named = parted(tag)
        if label is not None and (named != label or prefix in _BEGINS):
            spans.append(TagSpan(label, start, place))
            label = None
        if label is None:
            label, start = named, place
        if prefix in _ENDS:
            spans.append(TagSpan(label, start, place + 1))
            label = None
    if label is not None:
        spans.append(TagSpan(label, start, len(tags)))
    return spans


def tags_of(spans: Iterable[TagSpan], words: int, scheme: Scheme) -> list[str]:
    """Encode spans that do not overlap as tags.

    >>> tags_of([TagSpan("PER", 0, 2), TagSpan("LOC", 3, 4)], 4, "BIOES")
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    if scheme == "plain":
        raise InvalidInput("plain tags encode no spans: choose one of the other schemes to write spans as tags.")
    prefixes, tags = _PREFIXES[scheme], [OUTSIDE] * words
    before: TagSpan | None = None
    for span in spans:
        if span.end - span.start == 1:
            marks = [prefixes.only]
        else:
            marks = [prefixes.first, *[prefixes.inside] * (span.end - span.start - 2), prefixes.last]
        if scheme == "IOB1" and before is not None and (before.label, before.end) == (span.label, span.start):
            marks[0] = "B"
        tags[span.start : span.end] = [tag_of(mark, span.label) for mark in marks]
        before = span
    return tags


def converted(tags: Sequence[str], scheme: Scheme, target: Scheme) -> list[str]:
    """Convert tags from one scheme to another.

    >>> converted(["I-LOC", "B-LOC", "O"], "IOB1", "BIO")
    ['B-LOC', 'B-LOC', 'O']
    """
    if scheme == target:
        return list(tags)
    if scheme == "plain":
        raise InvalidInput(f"plain tags encode no spans, so they cannot be written as {target}.")
    return tags_of(spans_of(tags, scheme), len(tags), target)


def fault_of(tags: Sequence[str], scheme: Scheme) -> int | None:
    """Return the position of the first tag that the scheme does not allow there; None if all are allowed."""
    if scheme == "plain":
        return None
    right = tags_of(spans_of(tags, scheme), len(tags), scheme)
    return next((place for place, (tag, expected) in enumerate(zip(tags, right, strict=True)) if tag != expected), None)


def scheme_of(texts: Iterable[tuple[Sequence[str], str]], preferred: Scheme | None = None) -> Scheme:
    """Return the scheme in which all tags are valid; each text is a list of tags with a name for error messages.

    If several schemes fit, return ``preferred`` if it is one of them, else the first in the table above. If none fits,
    or the tags look like misspelt span tags, raise InvalidInput, which names the text.
    """
    listed = list(texts)
    bare = {} if preferred == "plain" else bare_spelling({tag for tags, _ in listed for tag in tags}, preferred)
    listed = [([bare[tag] for tag in tags], where) for tags, where in listed] if bare else listed
    examples: dict[str, tuple[str, str]] = {}  # for each prefix, the first tag with it and that tag's text
    for tags, where in listed:
        for tag in tags:
            if tag != OUTSIDE:
                examples.setdefault(parted(tag)[0] if bare or len(tag) > 1 else "", (tag, where))
    if set(examples) <= {""} and not (preferred and preferred != "plain" and not examples):
        if preferred != "plain":
            _check_spelling(listed)
        return "plain"
    fitting = _fitting(examples)
    if preferred in fitting:
        fitting.insert(0, preferred)
    right = (scheme for scheme in fitting if all(fault_of(tags, scheme) is None for tags, _ in listed))
    for scheme in right:
        return scheme
    check_tags(listed, fitting[0], may_be_plain=preferred is None)
    return fitting[0]


def scheme_of_names(labels: Iterable[str]) -> Scheme:
    """Return the first scheme that can use all tags of a model, so BIO rather than IOB1; plain if none can.

    >>> scheme_of_names(["O", "B-PER", "I-PER"])
    'BIO'
    """
    names = set(labels)
    if not names - {OUTSIDE} or OUTSIDE not in names or (names & set("BIESLU") and not bare_spelling(names)):
        return "plain"
    return next((scheme for scheme in _PREFIXES if not unwritten(names, scheme)), "plain")


def check_tags(texts: Sequence[tuple[Sequence[str], str]], scheme: Scheme, *, may_be_plain: bool = False) -> None:
    """Raise InvalidInput, which names the word, if a tag of these texts is not valid in the scheme.

    The message advises the scheme in which all tags are valid, else to correct the tag, or, if they ``may_be_plain``,
    the scheme plain.
    """
    faults = ((tags, where, fault_of(tags, scheme)) for tags, where in texts)
    tags, where, place = next((each for each in faults if each[2] is not None), ((), "", None))
    if place is None:
        return
    before = f"after {tags[place - 1]!r}" if place else "at the beginning"
    advice = f"Write {tags_of(spans_of(tags, scheme), len(tags), scheme)[place]!r} there"
    other = next((each for each in _PREFIXES if all(fault_of(tags, each) is None for tags, _ in texts)), None)
    if other is not None:
        advice = f"All tags are valid in the scheme {other!r}: choose it (--scheme {other})"
    elif may_be_plain:
        advice += ", or choose the scheme 'plain' (--scheme plain), which takes the tags as they are, without spans"
    raise InvalidInput(
        f"{where} has the tag {tags[place]!r} at word {place + 1}, {before}, which {scheme} does not allow there. "
        f"{advice}."
    )


def complete(labels: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return all tags that a scheme can use for spans of these labels, ``O`` first."""
    if scheme == "plain":
        return tuple(sorted(set(labels)))
    prefixes = dict.fromkeys(("B", *_PREFIXES[scheme].all))
    return (OUTSIDE, *(tag_of(prefix, label) for label in sorted(set(labels)) for prefix in prefixes))


def unwritten(labels: Iterable[str], scheme: Scheme) -> list[str]:
    """Return a model's tags that cannot be used in the scheme, alone or because the tags that they need are missing.

    In BIO, ``B`` tags may be missing: spans then begin with ``I``.

    >>> unwritten(["O", "B-PER", "I-PER"], "BIOES")
    ['B-PER', 'I-PER']
    """
    if scheme == "plain":
        return []
    names, prefixes = set(labels), _PREFIXES[scheme]
    wanting = []
    for tag in sorted(names - {OUTSIDE}):
        prefix, label = parted(tag)
        beside = () if scheme == "BIO" or prefix == prefixes.only else (prefixes.first, prefixes.last)
        if prefix not in ("B", *prefixes.all) or not names.issuperset(tag_of(each, label) for each in beside):
            wanting.append(tag)
    return wanting


def follows_its_own(tag: str, scheme: Scheme) -> bool:
    """Return True if this tag may only follow a tag with the same label."""
    return scheme == "IOB1" and parted(tag)[0] == "B"


def must_go_on(tag: str, scheme: Scheme) -> bool:
    """Return True if a span cannot end with this tag."""
    return scheme in ("BIOES", "BILOU") and parted(tag)[0] in ("B", "I")


def goes_on(tag: str, scheme: Scheme) -> bool:
    """Return True if a span cannot begin with this tag."""
    return scheme not in ("plain", "IOB1") and parted(tag)[0] in ("I", "E", "L")


def _fitting(examples: Mapping[str, tuple[str, str]]) -> list[Scheme]:
    """Return the schemes that have all these prefixes; ``examples`` maps each prefix to a tag and its text."""
    fitting = [scheme for scheme, prefixes in _PREFIXES.items() if set(examples) <= {*prefixes.all, "B"}]
    if fitting:
        return fitting
    known = {prefix for prefixes in _PREFIXES.values() for prefix in prefixes.all}
    tag, where = next((seen for prefix, seen in examples.items() if prefix not in known), next(iter(examples.values())))
    prefixes = ", ".join(prefix or "none" for prefix in sorted(examples))
    if prefixes_of_spans := sorted({"B", "I"} & set(examples)):
        named = " and ".join(f"'{each}-'" for each in prefixes_of_spans)
        advice = f"Others begin with {named}, so correct this tag: its line may be a comment, or lack a column."
        if parted(tag)[0] == "M":
            advice = "Write 'I-' for 'M-' to convert the tags from BMES to BIOES."
    else:
        advice = "Convert the tags, or choose the scheme 'plain' (--scheme plain), which takes them as they are."
    raise InvalidInput(
        f"{where} has the tag {tag!r}. The prefixes of all tags are {prefixes}, which fit none of the schemes "
        f"{', '.join(_PREFIXES)}. {advice}"
    )


def _check_spelling(texts: Iterable[tuple[Sequence[str], str]]) -> None:
    """Check that tags without prefixes are not misspelt span tags."""
    where = {tag: name for tags, name in texts for tag in tags}
    seen = meant(where, OUTSIDE)
    if seen is not None:
        tag, right = seen
        raise InvalidInput(
            f"{where[tag]} has the tag {tag!r}, which looks like a misspelt span tag: expected {right!r}, and "
            f"{OUTSIDE!r} for words outside of spans. Change all tags, or choose the scheme 'plain' (on the command "
            "line --scheme plain), which takes them as they are, without spans."
        )
