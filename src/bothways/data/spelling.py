"""Labels that look alike: they differ only in case, in spaces, or in how Unicode writes a character."""

import re
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from bothways.errors import LabelsAmbiguous, did_you_mean

_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")  # soft hyphen, zero-width space, word joiner, byte order mark
_MOST_SHOWN = 5

OPTION = "normalise_labels=True (--normalise-labels)"


def normalised(name: str) -> str:
    """Return a label in NFC, without invisible characters and outer spaces, and with single spaces."""
    if name.isascii():
        return " ".join(name.split()) or name
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", name)).split()) or name


def look(name: str) -> str:
    r"""Return a key that is equal for labels that look alike.

    >>> look("SPORT ") == look("sport") == look("\uff33port"), look("cafe\u0301") == look("caf\u00e9")
    (True, True)
    """
    if name.isascii():
        return normalised(name).casefold()
    visible = "".join(each for each in name if unicodedata.category(each) != "Cf" and each not in "\ufe0e\ufe0f")
    return normalised(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold()))


def spelled(name: str, beside: Iterable[str] = ()) -> str:
    r"""Return a label in quotes, with its Unicode form if that is not NFC or tells it from another one.

    >>> spelled("sport\u00a0"), spelled("cafe\u0301"), spelled("caf\u00e9", ["cafe\u0301"])
    ("'sport\\xa0'", "'café' (NFD)", "'café' (NFC)")
    """
    if name.isascii():
        return repr(name)
    composed = unicodedata.normalize("NFC", name)
    if composed != name:
        return f"{composed!r} ({'NFD' if unicodedata.is_normalized('NFD', name) else 'not NFC'})"
    alike = any(each != name and unicodedata.normalize("NFC", each) == name for each in beside)
    wide = any(
        unicodedata.east_asian_width(each) == "F" and unicodedata.normalize("NFKC", each) != each for each in name
    )
    return f"{name!r}{' (NFC)' if alike else ' (full-width)' if wide else ''}"


def near_label(name: str, known: Sequence[str]) -> str:
    """Return a hint for the end of a message about an unknown label; empty if none of the known ones is like it."""
    alike = next((each for each in known if look(each) == look(name)), None)
    if alike is None:
        return did_you_mean(name, known)
    return f" It looks like {spelled(alike, [name])}: {OPTION} reads it as this label."


def check_looks(rows: Iterable[Iterable[str]], column: str, option: str = OPTION) -> None:
    """Warn of labels that look alike.

    Warns:
        LabelsAmbiguous: The labels of the rows look alike; the message counts them.
    """
    counts = Counter(name for names in rows for name in names)
    alike = [group for group in _alike(counts).values() if len(group) > 1]
    if not alike:
        return
    shown = "; ".join(
        ", ".join(
            f"{spelled(name, group)} ({counts[name]:,})" for name in sorted(group, key=lambda each: -counts[each])
        )
        for group in alike[:_MOST_SHOWN]
    )
    more = f"; and {len(alike) - _MOST_SHOWN:,} more groups" if len(alike) > _MOST_SHOWN else ""
    warnings.warn(
        f"labels in {column!r} look alike and are taken as different: {shown}{more}. Write each in one way"
        f"{f', or take them as one: {option}' if option else ''}.",
        LabelsAmbiguous,
        stacklevel=4,
    )


def one_spelling(rows: Iterable[Iterable[str]], known: Collection[str] = ()) -> Mapping[str, str]:
    """Return one name for all labels that look alike: the ``known`` one, else the most frequent one, `normalised`."""
    counts = Counter(name for names in rows for name in names)
    of_known, found = _alike(known), dict[str, str]()
    for key, group in _alike(counts).items():
        names = of_known.get(key) or [normalised(max(group, key=lambda each: counts[each]))]
        # Known labels that look alike stay apart: a label that is none of them is unknown.
        found |= {name: name if name in names or len(names) > 1 else names[0] for name in group}
    return found


def _alike(names: Iterable[str]) -> Mapping[str, list[str]]:
    groups = defaultdict[str, list[str]](list)
    for name in names:
        groups[look(name)].append(name)
    return groups
