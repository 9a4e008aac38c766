"""Token classification in the JSON of Hugging Face; see `bothways.serving.api.huggingface`.

``first`` gives the tags of the model: each word has the tag of its first token, among the sequences that are valid in
their scheme. The other strategies read all tokens of a word, though models are usually trained on the first alone:

- ``none``: each token with its most probable tag.
- ``simple``: neighbouring tokens with the same label are one group.
- ``average`` and ``max``: a word has the most probable tag by the mean of its tokens' probabilities, or of its surest
  token, and neighbouring words with the same label are one group.

The score of a group is the mean of its tokens or words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bothways.evaluation.tag_schemes import parted
from bothways.evaluation.temperature import apply_temperature
from bothways.serving.api.huggingface_forms import HuggingFaceRequest, TaskParameters, listed
from bothways.serving.api.native import Unit
from bothways.serving.api.offsets import OffsetMap
from bothways.serving.api.vectors import TextTokens, rows_of_tokens
from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call
from bothways.tasks.columns import inputs_of
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.tagging.outputs import TagOutputs
from bothways.text.words import ReadWords, Words

Strategy: TypeAlias = Literal["none", "simple", "first", "average", "max"]


class TagParameters(TaskParameters):
    """Parameters of token classification."""

    aggregation_strategy: Annotated[Strategy, Meta(description="Tags of words as trained, or of all tokens.")] = "first"
    ignore_labels: Annotated[tuple[str, ...], Meta(description="Labels to leave out.")] = ("O",)
    offsets: Unit = "code_points"


class TagRequest(HuggingFaceRequest):
    """A request to tag the words of texts."""

    inputs: str | list[str]
    parameters: TagParameters | None = None


@dataclass(frozen=True, slots=True)
class TaggedPart:
    """A token, a word or a group of them.

    Attributes:
        tag: Its tag.
        score: Probability of the tag.
        begin: Offset of its first character in the text, in code points.
        end: Offset just past its last character.
        word: Number of the word in the text.
        index: Place of a token in the sequence that the model reads.
        id: Id of a token.
    """

    tag: str
    score: float
    begin: int
    end: int
    word: int = 0
    index: int = 0
    id: int = 0


def tag_texts(call: Call, served: ServedModel, body: TagRequest) -> object:
    """Return the tokens or groups of each text that are tagged."""
    parameters = body.parameters or TagParameters()
    call.ticket.on_overflow = parameters.on_overflow
    texts = listed(body.inputs)
    call.check_texts(texts)
    strategy, ignored = parameters.aggregation_strategy, parameters.ignore_labels
    found = []
    parts = _words(call, served, texts) if strategy == "first" else _tokens(call, served, texts, strategy)
    for text, own in zip(texts, parts, strict=True):
        place = OffsetMap(text, parameters.offsets)
        if strategy == "none":
            tokens = served.model.backend.tokenizer.tokens([each.id for each in own])
            answers = [_token(each, word, place) for each, word in zip(own, tokens, strict=True)]
            found.append([each for each in answers if each["entity"] not in ignored])
        else:
            groups = [_group(each, text, place) for each in grouped(own)]
            found.append([each for each in groups if each["entity_group"] not in ignored])
    return found[0] if isinstance(body.inputs, str) else found


def _token(part: TaggedPart, word: str, place: OffsetMap) -> dict[str, object]:
    places = {"start": place(part.begin), "end": place(part.end)}
    return {"entity": part.tag, "score": part.score, "index": part.index, "word": word} | places


def _group(parts: Sequence[TaggedPart], text: str, place: OffsetMap) -> dict[str, object]:
    begin, end = parts[0].begin, parts[-1].end
    score = sum(each.score for each in parts) / len(parts)
    places = {"start": place(begin), "end": place(end)}
    return {"entity_group": parted(parts[0].tag)[1], "score": score, "word": text[begin:end]} | places


def grouped(parts: Sequence[TaggedPart]) -> list[list[TaggedPart]]:
    """Return neighbours with the same label together; a tag that begins a span, or follows its end, begins a group."""
    groups: list[list[TaggedPart]] = []
    before = "", ""
    for each in parts:
        prefix, label = parted(each.tag)
        if groups and label == before[1] and prefix not in ("B", "S", "U") and before[0] not in ("E", "S", "L", "U"):
            groups[-1].append(each)
        else:
            groups.append([each])
        before = prefix, label
    return groups


# --- words, as the model tags them ---


def _words(call: Call, served: ServedModel, texts: list[str]) -> Iterator[list[TaggedPart]]:
    predictions = served.model.predict_stream(texts, show_progress=False)
    for number, prediction in enumerate(predictions):
        match prediction.to_dict():
            case {"words": list(words), "spans": list(spans), "dropped_tokens": int(dropped)}:
                call.drop(number, dropped)
                tags = [str(word["tag"]) for word in words]
                for span in spans:  # in any scheme, B and I say where it begins
                    first, last = span["words"]
                    tags[first:last] = [f"{'I' if place else 'B'}-{span['label']}" for place in range(last - first)]
                parts = zip(words, tags, strict=True)
                yield [TaggedPart(tag, word["probability"], word["start"], word["end"]) for word, tag in parts]
            case _:
                raise TypeError("expected the tags of a text")


# --- all tokens ---


def _tokens(call: Call, served: ServedModel, texts: list[str], strategy: Strategy) -> Iterator[list[TaggedPart]]:
    match served.model.fitted:
        case TrainedHead(outputs=TagOutputs() as outputs, backend=backend):
            pass
        case _:
            message = f"{served.name!r} has no tags of tokens, only of words: ask for aggregation_strategy 'first'."
            raise Refused(422, message, code="wrong_task", param="parameters")
    words: list[Words] = list(inputs_of(served.model.fitted.columns, texts))
    encoded = backend.runner.tokenize([ReadWords.of(each).text for each in words])
    labels, temperature = outputs.labels, outputs.confidence.temperature or 1.0
    found = rows_of_tokens(backend.runner, encoded, special=False)
    for number, (own, rows) in enumerate(zip(words, found, strict=True)):
        call.drop(number, rows.dropped_tokens)
        scores_TC = apply_temperature(rows.rows_TK, temperature)
        tokens = list(_parts(own, rows, scores_TC, labels))
        yield tokens if strategy in ("none", "simple") else list(_of_words(tokens, scores_TC, labels, strategy))


def _parts(
    words: Words, rows: TextTokens, scores_TC: NDArray[np.float64], labels: Sequence[str]
) -> Iterator[TaggedPart]:
    """Yield each token with its most probable tag, and its place in the text as given."""
    read = ReadWords.of(words)
    best_T = scores_TC.argmax(axis=1)
    for token, (begin, end) in enumerate(rows.places):
        # The space before a word belongs to the word.
        shown = end - 1 if begin < end and read.text[end - 1] != " " else end
        word = max(int(np.searchsorted(read.begins_W, shown, side="right")) - 1, 0)
        first, stop = words.spans[word]
        moved = first - int(read.begins_W[word])
        if stop - first == int(read.ends_W[word] - read.begins_W[word]):
            first, stop = max(begin + moved, first), min(end + moved, stop)
        best = int(best_T[token])
        score = float(scores_TC[token, best])
        yield TaggedPart(labels[best], score, first, stop, word, rows.indices[token], rows.ids[token])


def _of_words(
    tokens: Sequence[TaggedPart], scores_TC: NDArray[np.float64], labels: Sequence[str], strategy: Strategy
) -> Iterator[TaggedPart]:
    """Yield each word with the most probable tag of its tokens together."""
    for word, group in groupby(range(len(tokens)), key=lambda token: tokens[token].word):
        own = list(group)
        scores_tC = scores_TC[own]
        surest = scores_tC.max(axis=1).argmax()
        scores_C = scores_tC.mean(axis=0) if strategy == "average" else scores_tC[surest]
        best = int(scores_C.argmax())
        yield TaggedPart(labels[best], float(scores_C[best]), tokens[own[0]].begin, tokens[own[-1]].end, word)
