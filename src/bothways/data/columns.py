"""A row of a source, and the checked values of its columns: texts, words, and the three kinds of label."""

import ast
import json
import re
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from bothways import text as tokenizing
from bothways.errors import EmptyInput, InvalidInput, nearest, read_with, shown
from bothways.text.characters import VISIBLE

if TYPE_CHECKING:
    from bothways.text import Words

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source.

    Attributes:
        number: The line on which the row starts (text files) or its position (Parquet, lists), from 1.
        values: Column name to value: strings from csv, tsv and txt, any JSON or Parquet value otherwise.
        where: A description of the row for error messages, such as ``line 3 of 'train.csv'``.
    """

    number: int
    values: dict[str, object]
    where: str = field(default="the row", compare=False)


def check_columns(columns: Sequence[object], name: str) -> None:
    """Raise InvalidInput if two columns of a table have the same name; the message begins with ``name``."""
    if len(set(columns)) < len(columns):
        twice = first_duplicate(columns)
        raise InvalidInput(f"{name} has the column {twice!r} twice. Rename or drop one of the two.")


def first_duplicate(names: Iterable[T]) -> T:
    """Return the first repeated name."""
    seen = set[T]()
    for name in names:
        if name in seen:
            break
        seen.add(name)
    return name


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# A list of strings as JSON, Python or NumPy writes it; other text between brackets is no list.
_LIKE_A_LIST = re.compile(r"""\s*\[\s*(\]|['"].*['"]\s*\])\s*""", re.DOTALL)
# Commas tell them from NumPy's lists, of which Python would read the strings as a single one.
_STRING = r"""('([^'\\]|\\.)*'|"([^"\\]|\\.)*")"""
_PYTHON_LIST = re.compile(rf"\[\s*({_STRING}\s*,\s*)*({_STRING}\s*)?\]", re.DOTALL)
_TUPLE = re.compile(rf"\(\s*{_STRING}\s*(,\s*{_STRING}\s*)*,?\s*\)", re.DOTALL)
_NUMPY_LIST = re.compile(rf"\[\s*({_STRING}\s+)*{_STRING}\s*\]", re.DOTALL)
# The list in NumPy's ``array([...], dtype=object)`` or in ``tensor([...])``; brackets in its strings do not end it.
_ARRAY = re.compile(
    r"""(?<![\w.])(?:\w+\.)?(?:array|tensor)\(\s*(\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"\[\]])*\])\s*"""
    r"(?:,\s*\w+=[^(),]*(?:\([^()]*\))?)*\)",
    re.DOTALL,
)
_NUMBERS = re.compile(r"[\[(]\s*[+-]?\d+(\s*,\s*[+-]?\d+|\s+[+-]?\d+)+\s*,?\s*[\])]", re.ASCII)
_ONE_NUMBER = re.compile(r"[\[(]\s*[+-]?\d+\s*,?\s*[\])]", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
# Separators of the columns in a header.
_SEPARATED = re.compile(r"[,;\t|:]")
_JOINED = re.compile(r"[^\s,;|]+([,;|][^\s,;|]+)+")


_COLUMNS_SHOWN = 20
_CLOSE = 0.8  # similarity of a misspelt name
_FIRST = "sentence1 premise question1 query question text1 first source a sentence"
_SECOND = "sentence2 hypothesis question2 passage answer text2 second target b response document"
_TEXTS = "text body content sentence review comment message document post tweet utterance description abstract question"
_LABELS = "label labels class category target sentiment intent topic stars rating tag gold y"
# Words in the names of columns that often hold what an argument reads, the most telling first.
_USUAL = {
    "text": f"{_TEXTS} query title",
    "label": f"{_LABELS} score",
    "score": "score similarity rating stars grade value target label y",
    "tokens": "tokens words token sentence",
    "tags": "tags ner pos labels label tag",
    "text_a": _FIRST,
    "text_b": _SECOND,
    "anchor": _FIRST,
    "positive": f"positive pos {_SECOND}",
    "negative": "negative neg",
    "question": "question query",
    "query": "query question",
    "passage": "passage context document text",
    "context": "context passage paragraph document article text startphrase ctx",
    "answer": "answer response output",
    "answers": "answers answer",
    "choices": "choices options endings answers",
    "id": "id uid guid docid identifier key",
    **dict.fromkeys(("context_relevance", "answer_faithfulness", "answer_relevance"), f"{_LABELS} relevance relevant"),
}
TEXT_ARGUMENTS = {
    *("text", "text_a", "text_b", "anchor", "positive", "negative", "question", "context", "passage", "answer")
}


def value_at(row: Row, column: str, parameter: str = "", named: Sequence[str] = ()) -> object:
    """Return the value of a column, or raise InvalidInput with the columns of the row and the likely one.

    ``parameter`` is the argument that names the column, or the columns ``named``.
    """
    try:
        return row.values[column]
    except KeyError:
        there = columns_there(row.values, column, parameter, named, _other_kind(row, column))
        raise InvalidInput(f"{row.where} has no column {column!r}. {there}") from None


def text_at(row: Row, columns: str | tuple[str, ...], parameter: str = "text") -> str:
    """Return the text in a column, or in several columns joined by a space.

    Some of the columns may be empty (a document without a title), but not all. ``parameter`` is the argument that names
    them.

    Raises:
        InvalidInput: A column is missing or holds no string, or there is nothing but white space.
    """
    names = (columns,) if isinstance(columns, str) else columns
    if not names:
        raise InvalidInput("no text column was named: expected at least one.")
    parts = [_string_at(row, name, parameter, names) for name in names]
    text = " ".join(part for part in parts if part) if len(parts) > 1 else parts[0]
    if not VISIBLE.search(text):
        problem = "empty" if not text else "only white space" if text.isspace() else "only invisible characters"
        where = " and ".join(repr(name) for name in names)
        raise EmptyInput(f"{row.where}: the text in {where} is {problem}. Drop the row or fill the text in.")
    return text


def _string_at(row: Row, column: str, parameter: str, named: Sequence[str]) -> str:
    value = value_at(row, column, parameter, named)
    if value is None:
        raise EmptyInput(f"{row.where}: {column!r} is null. Expected a string: drop the row or fill it in.")
    if not isinstance(value, str):
        raise InvalidInput(f"{row.where}: {column!r} is of type {type(value).__name__}. Expected a string.")
    check_encodable(value, f"{row.where}: {column!r}")
    tokenizing.check_length(value, f"{row.where}: {column!r}")
    return str(value)


def check_encodable(text: str, what: str) -> None:
    """Raise InvalidInput for text with half of a surrogate pair; the message begins with ``what``."""
    if not text.isascii() and (surrogate := _LONE_SURROGATE.search(text)):
        raise InvalidInput(
            f"{what} holds half of a surrogate pair (U+{ord(surrogate[0]):04X}) at character {surrogate.start() + 1}, "
            "which no text encoding can represent. Repair or drop the row."
        )


def unwrapped(text: str) -> str:
    """Return the list in ``array([...], dtype=...)`` or ``tensor([...])``; other text as it is, without outer space.

    >>> unwrapped("array(['a', 'b'], dtype=object)")
    "['a', 'b']"
    """
    spelled = text.strip()
    found = _ARRAY.fullmatch(spelled)
    return found[1] if found else spelled


def written_list(text: str, instead: str) -> list[object] | None:
    """Parse a string that looks like a list of strings, else return None; ``instead`` is advice for the error message.

    The list is as JSON, Python (also a tuple) or NumPy prints it, also as ``array([...], dtype=object)``.

    >>> written_list("['B-PER', 'O']", "Put white space between them")
    ['B-PER', 'O']
    """
    spelled = unwrapped(text)
    is_tuple = _TUPLE.fullmatch(spelled) is not None and "," in re.sub(_STRING, "", spelled)
    if not is_tuple and not _LIKE_A_LIST.fullmatch(spelled):
        return None
    try:
        return list(json.loads(spelled))
    except ValueError:
        pass
    try:
        if is_tuple or _PYTHON_LIST.fullmatch(spelled):
            return list(ast.literal_eval(spelled))
        if _NUMPY_LIST.fullmatch(spelled):
            return [ast.literal_eval(each[0]) for each in re.finditer(_STRING, spelled, re.DOTALL)]
    except (ValueError, SyntaxError):  # an escape that Python does not know, or a line that ends within a string
        pass
    raise InvalidInput(f"expected a list in JSON notation, got {text!r:.60}. {instead}, or write JSON Lines.")


def written_objects(text: str) -> object:
    """Parse a list or object as JSON or Python prints it; None if the string is neither."""
    text = unwrapped(text)
    if text[:1] not in ("[", "{"):
        return None
    if _NUMPY_LIST.fullmatch(text) and "," not in re.sub(_STRING, "", text):
        return written_list(text, "Put commas between them")
    plain = _ARRAY.sub(r"\1", text.strip())
    for parse, spelled in ((json.loads, text.strip()), (ast.literal_eval, text.strip()), (ast.literal_eval, plain)):
        try:
            value: object = parse(spelled)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return value
    return None


def plain_scalar(value: object) -> object:
    """Convert a NumPy scalar or a member of an Enum to a Python value; return anything else as it is."""
    if isinstance(value, Enum):
        value = value.value
    numpy = sys.modules.get("numpy")  # there are no NumPy scalars before NumPy is loaded
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _other_kind(row: Row, missing: str) -> str:
    """Return advice if the file of a row with a single column seems to be of another format than was read."""
    if len(row.values) != 1:
        return ""
    ((name, value),) = row.values.items()
    header = value if name == "text" and isinstance(value, str) else str(name)
    if missing not in (part.strip(' "') for part in _SEPARATED.split(header)):
        return ""
    if ":" in header:
        return " If ':' separates the columns, put the line sep=: before them."
    format_ = "tsv" if "\t" in header else "csv"
    return f" The file seems to be a table, with the header {header!r:.80}: give {read_with('format', format_)}."


def words_at(row: Row, column: str) -> "Words":
    """Return the words in a column: a list of strings, or one string with white space between the words.

    The string may also be a list in JSON or Python notation, as in a csv file.
    """
    words = strings_at(row, column, "tokens")
    if not words:
        raise EmptyInput(f"{row.where}: there are no words in {column!r}. Drop the row or fill it in.")
    for number, word in enumerate(words, start=1):
        if not word:
            raise InvalidInput(f"{row.where}: word {number} in {column!r} is empty. Drop it, with its tag.")
        check_encodable(word, f"{row.where}: word {number} in {column!r}")
    return tokenizing.Words.of_list(words)


def given_words(row: Row, tokens: str, text: tuple[str, ...]) -> "Words":
    """Return the words in the column ``tokens``; in a row without it, the words of the text in the columns ``text``."""
    if tokens in row.values:
        return words_at(row, tokens)
    if not any(name in row.values for name in text):
        listed = any(isinstance(value, list) or name in ("words", "token") for name, value in row.values.items())
        missing, parameter = (tokens, "tokens") if listed else (text[0], "text")
        raise InvalidInput(
            f"{row.where} has neither a column {tokens!r} of words nor a column {' or '.join(map(repr, text))} of "
            f"text. {columns_there(row.values, missing, parameter)}"
        )
    return tokenizing.Words.of_text(text_at(row, text))


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts of an input: a text, words, or a tuple or list of inputs."""
    match value:
        case tokenizing.Words(text=text):
            yield text
        case tuple() | list():
            for part in value:
                yield from texts_in(part)
        case _:
            yield str(value)


def list_at(row: Row, column: str, instead: str, parameter: str = "") -> object:
    """Return the value of a column, parsed if it is a string that looks like a list; see `written_list`."""
    value = value_at(row, column, parameter)
    try:
        listed = written_list(value, instead) if isinstance(value, str) else None
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}: {column!r}: {error}") from error
    return value if listed is None else listed


def tags_at(row: Row, column: str, *, numbers: bool) -> list[str]:
    """Return the tags in a column as `strings_at` does; with ``numbers``, also whole numbers, as strings."""
    value = value_at(row, column, "tags")
    if isinstance(value, str) and (_NUMBERS.fullmatch(spelled := unwrapped(value)) or _ONE_NUMBER.fullmatch(spelled)):
        value = list(map(int, _NUMBER.findall(spelled)))
    if isinstance(value, list | tuple) and value and all(type(plain_scalar(each)) is int for each in value):
        if numbers:
            return [str(plain_scalar(each)) for each in value]
        raise InvalidInput(
            f"{row.where}: the tags in {column!r} are numbers, got {shown(value, 40)}. Expected their names: name all "
            "tags in the order of the numbers, labels=[...] when the model is opened (--labels O,B-PER,I-PER)."
        )
    return strings_at(row, column, "tags")


def strings_at(row: Row, column: str, parameter: str = "") -> list[str]:
    """Return the strings in a column: a list, a string in list notation, or a string to split at white space."""
    value = list_at(row, column, "Put white space between the strings", parameter)
    if isinstance(value, str):
        if _NUMBERS.fullmatch(value.strip()) or (_JOINED.fullmatch(value.strip()) and not value.strip()[0].isdigit()):
            raise InvalidInput(
                f'{row.where}: {column!r} is {shown(value, 40)}. Expected a list of strings, such as \'["a", "b"]\', '
                "or strings separated by white space."
            )
        return value.split()
    if not isinstance(value, list | tuple):
        found = "null" if value is None else f"of type {type(value).__name__}"
        raise (EmptyInput if value is None else InvalidInput)(
            f"{row.where}: {column!r} is {found}. Expected a list of strings, or strings separated by white space."
        )
    for number, each in enumerate(value, start=1):
        if not isinstance(each, str):
            raise InvalidInput(
                f"{row.where}: item {number} in {column!r} is {shown(each, 40)}, of type {type(each).__name__}. "
                "Expected a string."
            )
    return list(value)


# --- rows without a text ---


def with_text(read: Callable[[Row], T], rows: Iterable[Row], has_text: deque[bool]) -> Iterator[T]:
    """Yield ``read(row)`` for each row that has a text; append True or False to ``has_text`` for every row."""
    for row in rows:
        try:
            value = read(row)
        except EmptyInput:
            has_text.append(False)
            continue
        has_text.append(True)
        yield value


def with_gaps(predictions: Iterable[T], has_text: deque[bool]) -> Iterator[T | None]:
    """Yield predictions, and None for each row that had no text, in the order of the rows."""
    for each in predictions:
        while not has_text.popleft():
            yield None
        yield each
    yield from (None for _ in has_text)


# --- the column that a person may have meant ---


def columns_there(
    values: Mapping[str, object], missing: str, parameter: str = "", named: Sequence[str] = (), instead: str = ""
) -> str:
    """Return the columns of a row that lacks one, and advice.

    >>> print(columns_there({"id": "7", "review_body": "It is good."}, "text", "text"))
    It has: 'id', 'review_body'. Did you mean text='review_body' (--text review_body)?

    Args:
        values: The row.
        missing: The column that it lacks.
        parameter: The argument that names the column; empty if none does.
        named: All columns that this argument names, if there are several.
        instead: Other advice.
    """
    names = [str(column) for column in values]
    if not names:
        return "The row has no columns at all."
    shown = ", ".join(repr(name) for name in names[:_COLUMNS_SHOWN])
    more = f" and {len(names) - _COLUMNS_SHOWN} more" if len(names) > _COLUMNS_SHOWN else ""
    likely = _likely(values, missing, parameter or missing)
    if instead:
        advice = instead
    elif not parameter:
        advice = f" Rename {'the column that holds it' if likely is None else repr(likely)} to {missing!r}."
    elif likely is None:
        advice = f" Name another: {parameter}=... ({_option(parameter)} COLUMN)."
    else:
        meant = tuple(likely if each == missing else each for each in named) or (likely,)
        option = " ".join(f"{_option(parameter)} {shlex.quote(each)}" for each in meant)
        value = repr(meant if len(meant) > 1 else meant[0])
        advice = f" Did you mean {parameter}={value} ({option})?"
    return f"It has: {shown}{more}.{advice}"


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _likely(values: Mapping[str, object], missing: str, parameter: str) -> str | None:
    """Return a column by its spelling, by a usual name, or because it has the longest text of the row; None if none."""
    reads_text = parameter in TEXT_ARGUMENTS
    names = [name for name, value in values.items() if not reads_text or isinstance(value, str)]
    # The usual name of another argument is no misspelling: text_a is not meant by text_b.
    own = [name for name in names if name not in _USUAL or name == parameter]
    near = nearest(missing, own, _CLOSE)
    if near is not None:
        return near
    parts = {name: re.findall(r"[a-z]+\d?", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()) for name in names}
    for word in _USUAL.get(parameter, "").split():
        if found := next((name for name in names if word in parts[name]), None):
            return found
    longest = max((name for name in names if reads_text), key=lambda name: len(str(values[name])), default=None)
    if longest is not None and len(str(values[longest]).split()) > 1:
        return longest
    return nearest(missing, own)
