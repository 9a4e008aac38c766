"""Characters that neither HTML nor XML can hold, made visible."""

import re

# XML 1.0, production [2] Char, the other way round: control characters, lone surrogates and two non-characters.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LINE_ENDS = re.compile("\r\n|[\r\n\u2028\u2029]")


def storable(text: str) -> str:
    """``text`` with U+FFFD for every character that an XML or HTML document cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


def printable(text: str) -> str:
    r"""``text`` on one line for a label: line ends as ⏎, tabs as ⇥, an empty text as ∅.

    >>> printable("a\nb")
    'a⏎b'
    """
    return storable(_LINE_ENDS.sub("⏎", text).replace("\t", "⇥")) or "∅"
