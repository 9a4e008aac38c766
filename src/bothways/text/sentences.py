"""Sentence bounds, by rule.

Marks that end sentences in most scripts, unless what stands before a full stop is a known abbreviation or a single
letter, or what follows begins in lower case. Pre-training cuts documents at these places; some wrong ones cost little.
"""

import re

# What ends a sentence: at the end of a line always; after a mark with white space behind it; after a mark of scripts
# that write none.
_QUOTES = "\"'”’»)\\]"  # noqa: RUF001 (quotes, as written)
_UNSPACED = "。！？｡؟۔।॥"  # noqa: RUF001 (full stops of other scripts)
_END = re.compile(rf"(?P<line>\s*\n\s*)|(?P<mark>[.!?…]+[{_QUOTES}]*)(?=\s)|[{_UNSPACED}]+[{_QUOTES}」』）]*")  # noqa: RUF001
_OPENING = "\"'“‘«(["  # noqa: RUF001
_WORD_BEFORE = re.compile(r"[^\W\d_]+(?:\.[^\W\d_]+)*$")
_LISTED = (
    "adj al approx apr aug ave bros ca capt cf ch cmdr co col corp cpl dec dept dr ed eds e.g eg esp est et etc ex "
    "feb fig figs fr gen gov hon i.e ie inc jan jr jul jun lt ltd maj mar messrs mgr mr mrs ms mt nos nov oct p pl pp "
    "prof pt rep rev sec sen sep sept sgt sr st u.k u.s univ viz vol vols vs bzw bspw evtl ggf hr hrsg nr sog usw vgl "
    "z.b mme mlle"
)
_ABBREVIATIONS = frozenset(_LISTED.split())


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each sentence, ascending, without the white space around it.

    >>> text = "Dr. Ames left at 5 p.m. yesterday. Why? Nobody knows."
    >>> [text[begin:end] for begin, end in sentence_spans(text)]
    ['Dr. Ames left at 5 p.m. yesterday.', 'Why?', 'Nobody knows.']
    """
    spans: list[tuple[int, int]] = []
    begin = 0
    for found in _END.finditer(text):
        if found["mark"] is not None and not _ends(text, found.start(), found.end(), found["mark"]):
            continue
        begin = _add(spans, text, begin, found.start() if found["line"] is not None else found.end())
    _add(spans, text, begin, len(text))
    return spans


def _add(spans: list[tuple[int, int]], text: str, begin: int, end: int) -> int:
    """Add the sentence between two places, if any; return the end."""
    sentence = text[begin:end]
    left = len(sentence) - len(sentence.lstrip())
    if left < len(sentence):
        spans.append((begin + left, begin + len(sentence.rstrip())))
    return end


def _ends(text: str, start: int, end: int, mark: str) -> bool:
    """Test whether a mark with white space behind it ends a sentence."""
    after = text[end : end + 20].lstrip().lstrip(_OPENING)
    if after[:1].islower():
        return False
    if mark != ".":
        return True
    word = _WORD_BEFORE.search(text, max(0, start - 20), start)
    if word is None:
        return True
    last = word[0].rpartition(".")[2]
    return word[0].lower() not in _ABBREVIATIONS and len(last) > 1
