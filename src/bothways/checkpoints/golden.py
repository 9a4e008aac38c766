"""Golden answers: what a model answers to 16 inputs, recorded so that an upgrade that changes an answer is noticed.

A saved model has them in ``golden.json``: each input with its first tokens, the checksum of all its token ids, and its
answer, and for the model the checksums of its weights, its settings, and the versions that computed the answers.
`bothways.checkpoints.golden_check` compares them with a model.

A row of numbers is kept whole up to 64 of them. A longer one, such as a vector of 1,024, is kept as 64 sums of all its
numbers with fixed random signs: a small file, in which every number counts. A change of the row moves each sum by about
the length of the change (Johnson and Lindenstrauss 1984), so that no change of the row is too small to be seen in the
sums but visible in the row.

Shapes: K numbers of an answer, S numbers that are kept of it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import read_json, sha256_of
from bothways.checkpoints.schema import GOLDEN_FILE, OURS, Stored
from bothways.choices import GoldenSource
from bothways.errors import BothwaysError, InvalidInput
from bothways.progress import phase
from bothways.reading import parse_json, read_bytes
from bothways.text import EncodedText, TextTokenizer, Words

MOST_INPUTS = 16

ENCODER = "encoder"
"""The task in the golden answers of an encoder, whose answers are its states."""

KEPT = 64
"""Maximum numbers, tokens and words of an answer in the file."""

# Maximum characters of a recorded input, so that the file stays small, and the longest inputs among the recorded ones.
_MOST_CHARACTERS, _LONGEST = 8000, 4
# Columns of the signs that are drawn at once.
_DRAWN = 8192
# Settings whose JSON is longer are recorded as a checksum.
_SHORT = 200
MAX_GOLDEN = 16 * 2**20

_WEIGHTS = (".safetensors", ".bin", ".onnx", ".data")
_SETTINGS = ("config.json", OURS, "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
# Entries that do not change an answer: facts about the training, and what is compared as weights.
_NO_SETTINGS = ("card", "checksums", "members", "format_version", "transformers_version", "__version__")

NEUTRAL = (
    "The quick brown fox jumps over the lazy dog.",
    "Please send the invoice of March 3rd, 2021 to accounting@example.com before 5:30 p.m.!",
    "Où est la gare ? Elle est à côté de l'hôtel, près du café.",
    "Der Zug nach München fährt um 7 Uhr von Gleis 12 ab; Größe und Gewicht des Gepäcks sind egal.",
    "¿Cuánto cuesta el billete de ida y vuelta a Córdoba?",
    "今日は天気がいいので、公園を散歩しました。",
    "我们明天上午九点在图书馆门口见面\N{FULLWIDTH COMMA}好吗\N{FULLWIDTH QUESTION MARK}",
    "Завтра утром мы поедем на дачу, если не будет дождя.",
    "القطار يصل إلى المحطة في الساعة الثامنة مساءً.",
    "आज बाज़ार में आम बहुत सस्ते हैं।",
    "오늘 저녁에 같이 영화 보러 갈래요?",
    "I don't think it's worth it… but who knows? 👍🏽 #maybe @someone",
    'def area(r): return 3.14159 * r ** 2  # <b>not</b> HTML & {json: "yes"}',
    "naïve façade, coöperate, Ǆ, ﬁne, e\u0301tude, 1½ km², x→y, “quotes” \N{EN DASH} dashes — 100 %",
    "unbelievably counterproductive antidisestablishmentarianism-style hyper-local micro-optimisations",
    " ".join(
        "It was late in the autumn when the letter came. Nobody in the house knew the handwriting, and for a while it "
        f"lay unopened on the table. In the {number} week someone remembered an uncle who had gone to sea."
        for number in (
            *("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"),
            *("ninth", "tenth", "eleventh", "twelfth"),
        )
    ),
)
"""Inputs for models whose validation data are absent or must not be quoted: several scripts, odd characters, a long
text."""

# Largest difference between an answer's numbers that counts as equal, relative to the largest number of all answers,
# by the precision of the matrix products. In float32, between one thread and two, oneDNN and MKL, AVX2, AVX-512 and
# no vector instructions, and against float64, vectors of MiniLM differ by up to 9e-7, those of random models of 24
# layers in six families by 5e-7. They differ by 5e-4 to 1e-3 if one tensor is scaled by 1.001 or the weights are
# rounded to float16, and by 8e-3 after bfloat16. So 5e-5 leaves a factor of 50 for other processors and GPUs, and 10
# for what must be noticed. Computed in float16, vectors differ from float32 by 1e-3, in bfloat16 by 1e-2; in int8
# (chosen for cosines of .99) with and without VNNI by 3e-2.
_TOLERANCES = {"float64": 1e-9, "float32": 5e-5, "float16": 1e-2, "bfloat16": 5e-2, "int8": 1e-1}

Json: TypeAlias = object
"""A JSON value."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's tokens and its answer for one input.

    Attributes:
        tokens: The windows of the input's texts, with the tokenizer that made them.
        numbers_K: The vector, or the logits of all rows.
        answer: The prediction as a JSON value; None for a vector.
    """

    tokens: Sequence[tuple[TextTokenizer, EncodedText]]
    numbers_K: NDArray[np.float64]
    answer: Json = None


class Answering(Protocol):
    """A model as its golden answers see it, answering in its default way.

    ``task`` says how the model is opened, ``architecture`` tells it from other models of the task, ``arithmetic`` is
    the precision and the device, and ``runtime`` the package that computes. ``held_out`` are inputs that the model was
    not trained on, and ``opened_from`` the folder that it was opened from, unless it was trained since.
    """

    @property
    def task(self) -> str: ...

    @property
    def architecture(self) -> Mapping[str, object]: ...

    @property
    def arithmetic(self) -> tuple[str, str]: ...

    @property
    def runtime(self) -> str: ...

    @property
    def held_out(self) -> Sequence[object]: ...

    @property
    def opened_from(self) -> Path | None: ...

    def inputs_of(self, values: Sequence[Json]) -> list[object]:
        """Return JSON values as checked inputs."""

    def neutral(self, texts: Sequence[str]) -> list[object]:
        """Return inputs that are made of these texts."""

    def answers(self, inputs: Sequence[object]) -> Iterator[ModelAnswer]:
        """Yield the tokens and the answer of each input."""


@dataclass(frozen=True, slots=True)
class GoldenInputs:
    """Inputs of golden answers as JSON values, and their source: ``validation``, ``neutral`` or ``given``."""

    source: str
    values: Sequence[Json]


# --- choosing inputs ---


def choose_inputs(
    held_out: Iterable[tuple[object, object]], training: Iterable[object], seed: int
) -> tuple[object, ...]:
    """Return up to 16 of the held-out inputs: some of the longest, the others spread over the labels.

    ``held_out`` are inputs with their labels. Inputs that also occur in ``training`` are left out, since the answers
    of a published model must not tell what it was trained on.
    """
    learnt = set(training)
    unseen = {value: repr(label) for value, label in held_out if value not in learnt}
    sizes = {value: len(json.dumps(as_json(value), ensure_ascii=False)) for value in unseen}
    listed = [value for value in unseen if sizes[value] <= _MOST_CHARACTERS]
    order = [listed[place] for place in np.random.default_rng(seed).permutation(len(listed)).tolist()]
    chosen = sorted(order, key=lambda value: -sizes[value])[:_LONGEST]
    counts: dict[str, int] = {}
    turns: list[tuple[int, object]] = []
    for value in order:
        if value not in chosen:
            label = unseen[value]
            turns.append((counts.setdefault(label, 0), value))
            counts[label] += 1
    others = [value for _, value in sorted(turns, key=lambda turn: turn[0])]
    return (*chosen, *others)[:MOST_INPUTS]


def as_json(value: object) -> Json:
    """Return an input as a JSON value that its task's columns accept: a text, or a list."""
    match value:
        case str():
            return value
        case tuple() | list():
            return [as_json(each) for each in value]
        case Words():
            return value.listed()
    raise TypeError(f"expected an input of a task, got {type(value).__name__}")


# --- recording ---


def write_golden(folder: Path, model: Answering, golden: GoldenSource | None) -> None:
    """Write ``golden.json`` into the folder of a model that was just written.

    The inputs are held-out ones, filled up with neutral ones, else those in the folder that the model was opened from,
    else the neutral ones. A model that cannot answer any of them gets no file; only a failing disk makes this fail.
    """
    if golden is None:
        return
    try:
        inputs = (golden == "validation" and _own_inputs(model)) or neutral_inputs(model)
        written = Stored.of(read_json(folder / OURS)).checksums if (folder / OURS).is_file() else {}
        content = recorded(folder, model, inputs, known=written)
    except Exception as error:  # whatever a model or an inherited file of golden answers raises
        phase(f"no golden answers were recorded: {error}")
        return
    (folder / GOLDEN_FILE).write_text(content, encoding="utf-8")


def _own_inputs(model: Answering) -> GoldenInputs | None:
    if model.held_out:
        held_out = [as_json(value) for value in model.held_out]
        return GoldenInputs("validation", [*held_out, *neutral_inputs(model).values][:MOST_INPUTS])
    return None if model.opened_from is None else stored_inputs(model.opened_from)


def neutral_inputs(model: Answering) -> GoldenInputs:
    """Return the neutral inputs in the form of the model's task."""
    return GoldenInputs("neutral", [as_json(value) for value in model.neutral(NEUTRAL)])


def stored_inputs(folder: Path) -> GoldenInputs | None:
    """Return the inputs in a folder's ``golden.json``; None if there is none, or it is damaged."""
    try:
        match parse_json(read_bytes(folder / GOLDEN_FILE, MAX_GOLDEN)):
            case {"inputs": str(source), "answers": list([_, *_] as rows)}:
                values = [row["input"] for row in rows[:MOST_INPUTS]]
            case _:
                return None
    except (BothwaysError, OSError, ValueError, TypeError, KeyError):
        return None
    return GoldenInputs(source, values)


def recorded(folder: Path, model: Answering, inputs: GoldenInputs, *, known: Mapping[str, str] | None = None) -> str:
    """Return the content of a golden file: the model's answers to inputs, leaving out those that it cannot answer.

    ``known`` are checksums of weight files in the folder; the others are computed.
    """
    precision, device = model.arithmetic
    content = {
        "format_version": 1,
        "task": model.task,
        "inputs": inputs.source,
        "architecture": dict(model.architecture),
        "made": {"precision": precision, "device": device, "versions": versions(model.runtime)},
        "tolerance": tolerance_of(precision),
        "weights": weights_of(folder, known),
        "settings": settings_of(folder),
    }
    rows = [{"input": value, **row_of(probe)} for value, probe in answered(model, inputs.values)]
    lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows)
    head = json.dumps(content, indent=2, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n  "answers": [\n{lines}\n  ]\n}}\n'


def answered(model: Answering, values: Sequence[Json]) -> list[tuple[Json, ModelAnswer]]:
    """Return the probes of inputs, computed together; if the model refuses some of them, those of the others."""
    try:
        return list(zip(values, model.answers(model.inputs_of(values)), strict=True))
    except BothwaysError:
        kept = [value for value in values if _answers(model, value)]
        return list(zip(kept, model.answers(model.inputs_of(kept or values)), strict=True))


def _answers(model: Answering, value: Json) -> bool:
    try:
        return bool(list(model.answers(model.inputs_of([value]))))
    except BothwaysError:
        return False


def row_of(probe: ModelAnswer) -> dict[str, Json]:
    """Return a probe as an entry of the file."""
    windows = [window for _, text in probe.tokens for window in text.windows]
    ids = [number for window in windows for number in window.ids]
    tokenizer, numbers, words = probe.tokens[0][0], list[float](), list[str]()
    _flatten(probe.answer, numbers, words)
    if not (np.isfinite(probe.numbers_K).all() and np.isfinite(numbers).all()):
        raise InvalidInput(
            "expected finite numbers as the model's answer, got NaN or infinity: its weights are damaged."
        )
    first = list(windows[0].ids[:KEPT])
    spelt = json.dumps(words, ensure_ascii=False)
    return {
        "tokens": tokenizer.tokens(first),
        "ids": first,
        "token_count": len(ids),
        "ids_sha256": _sha256(json.dumps([[list(window.ids), list(window.types)] for window in windows])),
        "size": len(probe.numbers_K),
        "numbers": kept_numbers(probe.numbers_K),
        "answer_size": len(numbers),
        "answer_numbers": kept_numbers(np.array(numbers, dtype=np.float64)),
        "answer_words": words[:KEPT],
        "answer_sha256": _sha256(spelt),
    }


def kept_numbers(numbers_K: NDArray[np.float64]) -> list[float]:
    """Return up to 64 numbers with 8 digits: all of them, or that many sums of all with fixed signs."""
    size = len(numbers_K)
    kept_S = numbers_K if size <= KEPT else _signed_sums(numbers_K) / np.sqrt(size)
    return [float(f"{value:.8g}") for value in kept_S.tolist()]


def _signed_sums(numbers_K: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 64 sums (S) of all numbers; the signs are the bits of a hash, the same on every machine."""
    sums_S = np.zeros(KEPT)
    for start in range(0, len(numbers_K), _DRAWN):
        part = numbers_K[start : start + _DRAWN]
        bits = hashlib.shake_256(f"golden {start}".encode()).digest(KEPT * _DRAWN // 8)
        signs_SK = 2.0 * np.unpackbits(np.frombuffer(bits, np.uint8)).reshape(_DRAWN, KEPT).T - 1
        sums_S += signs_SK[:, : len(part)] @ part
    return sums_S


def _flatten(value: Json, numbers: list[float], words: list[str]) -> None:
    """Collect the numbers with a fraction, and all other values as texts, in an order that does not depend on them."""
    match value:
        case dict():
            for name in sorted(value):
                _flatten(value[name], numbers, words)
        case list() | tuple():
            for each in value:
                _flatten(each, numbers, words)
        case float():
            numbers.append(value)
        case _:
            words.append(str(value))


# --- the identity of a model ---


def tolerance_of(precision: str) -> float:
    """Return the tolerance for answers in a precision such as ``float32``."""
    return _TOLERANCES.get(precision, max(_TOLERANCES.values()))


def versions(runtime: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that compute answers."""
    found = {}
    for name in ("bothways", runtime, "tokenizers", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # another distribution, such as onnxruntime-gpu
            found[name] = "unknown"
    return {**found, "python": platform.python_version()}


def weights_of(folder: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file of weights, by its path; of an ensemble, that of each member.

    Checksums that are ``known`` are not computed again.
    """
    extras = read_json(folder / OURS) if (folder / OURS).is_file() else {}
    match extras.get("members"):
        case list(members):
            return {str(each.get("path")): str(each.get("fingerprint")) for each in members if isinstance(each, dict)}
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _WEIGHTS and path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: (known or {}).get(name) or sha256_of(path) for name, path in names.items()}


def settings_of(folder: Path) -> dict[str, Json]:
    """Return the settings in a folder's JSON files, by file and name; long ones as a checksum."""
    paths = [folder / name for name in _SETTINGS] + sorted(folder.glob("*/config.json"))
    found: dict[str, Json] = {}
    for path in paths:
        if path.is_file():
            content = parse_json(read_bytes(path))
            named = content if isinstance(content, dict) else {"": content}
            for name, value in named.items():
                if name not in _NO_SETTINGS:
                    found[f"{path.relative_to(folder).as_posix()}: {name}"] = _short(_without_card(value))
    return found


def _without_card(value: Json) -> Json:
    """Return a setting without the cards inside it, which people may edit."""
    match value:
        case dict():
            return {name: _without_card(each) for name, each in value.items() if name not in _NO_SETTINGS}
        case list():
            return [_without_card(each) for each in value]
    return value


def _short(value: Json) -> Json:
    written = json.dumps(value, ensure_ascii=False)
    return value if len(written) <= _SHORT else f"sha256 {_sha256(written)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
