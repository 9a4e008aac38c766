"""Roles of attention heads, scored over a corpus, as Clark et al. (2019, arXiv:1906.04341) do for BERT.

There are two kinds of score. A *weight* is the mean attention from tokens to one token, such as the first one, [SEP]
or the previous one. An *accuracy* counts how often a word attends most to the right word: its head in a dependency
tree, or the noun that a pronoun stands for. Attention to a word of several tokens is the sum over the tokens, attention
from such a word is the mean over its tokens (section 4.1).

The best of many heads scores well by chance. Its score is therefore compared with the best score of a random encoder of
the same shape, and with baselines without a model: uniform attention, or the best fixed distance.

Shapes: L layers, N heads, n tokens of a sentence, W words.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.checkpoints import PretrainedEncoder
from bothways.data import Source, read_rows
from bothways.data.columns import given_words
from bothways.encoder import Encoder, Recorder
from bothways.errors import InvalidInput, shown
from bothways.explain.attention import Head
from bothways.explain.targets import NO_WORD, overlapping
from bothways.packing import pack
from bothways.progress import progress
from bothways.text import Places, ReadWords, Words
from bothways.text.windows import Window
from bothways.training.state import seeded

Floats = NDArray[np.float64]
Kind = Literal["weight", "accuracy"]

PRONOUN = "pronoun to its noun"
# Minimum number of word pairs of a dependency relation.
MIN_PAIRS = 20
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence, with its dependency tree if it is known."""

    words: tuple[str, ...]
    # The number of each word's head, counted from 1; 0 for the root. Empty without a tree.
    heads: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()  # the relation of each word to its head


@dataclass(frozen=True, slots=True, eq=False)
class HeadRole:
    """The scores of all heads for one role, such as attention to the previous token."""

    role: str  # its name
    kind: Kind  # kind of the score
    count: int  # number of scored tokens or words
    scores_LN: Floats  # the scores of all heads, from 0 to 1
    without: float  # the score of a baseline without a model: uniform attention, the best fixed distance, or chance
    random: float | None = None  # the best score of the heads of a random encoder; None without one

    @property
    def best(self) -> Head:
        """The first head with the highest score."""
        layer, head = np.unravel_index(int(self.scores_LN.argmax()), self.scores_LN.shape)
        return Head(int(layer), int(head))

    @property
    def score(self) -> float:
        """Score of the best head."""
        return float(self.scores_LN.max())

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "role": self.role,
            "kind": self.kind,
            "layer": self.best.layer,
            "head": self.best.head,
            "score": self.score,
            "without_a_model": self.without,
            "random_encoder": self.random,
            "count": self.count,
            "scores": self.scores_LN.tolist(),
        }


def head_roles(
    model: PretrainedEncoder,
    sentences: Iterable[Sentence] = (),
    *,
    random: bool = True,
    seed: int = 0,
    min_pairs: int = MIN_PAIRS,
    show_progress: bool | None = None,
) -> tuple[HeadRole, ...]:
    """Score all heads of an encoder in all roles.

    The pronoun role is scored on the package's sentences, see `pronoun_sentences`. Sentences longer than a window are
    left out.

    Args:
        model: The encoder.
        sentences: A corpus; dependency relations are scored if it has trees. Default: the package's sentences with
            pronouns.
        random: Also score a random encoder of the same shape.
        seed: Seed of the random encoder.
        min_pairs: Minimum number of word pairs of a dependency relation.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: No sentence fits into a window, or a sentence is invalid.
    """
    pronouns = pronoun_sentences()
    corpus = list(sentences) or [each.sentence for each in pronouns]
    encoders = [model.encoder]
    if random:
        with seeded(seed):
            encoders.append(Encoder(model.config).to(model.device, model.encoder.embedding.tokens.weight.dtype).eval())
    tallies = []
    with progress("scoring attention heads", len(encoders) * (len(corpus) + len(pronouns)), show=show_progress) as bar:
        for encoder in encoders:
            tally = _Tally()
            for number, attention in _sentence_attentions(model, encoder, [each.words for each in corpus]):
                tally.add_tokens(attention, model)
                tally.add_tree(corpus[number], attention)
                bar.advance()
            for number, attention in _sentence_attentions(model, encoder, [each.sentence.words for each in pronouns]):
                tally.add_pronoun(pronouns[number], attention)
                bar.advance()
            tallies.append(tally)
    if "weight" not in tallies[0].kinds.values():
        raise InvalidInput("expected sentences that fit into a window of the model, got none: give shorter sentences.")
    own, *others = tallies
    return tuple(
        HeadRole(
            role,
            own.kinds[role],
            own.counts[role],
            own.mean(role),
            own.without(role),
            float(others[0].mean(role).max()) if others else None,
        )
        for role in own.sums
        if own.kinds[role] == "weight" or role == PRONOUN or own.counts[role] >= min_pairs
    )


@dataclass(frozen=True, slots=True)
class PronounSentence:
    """A sentence with a pronoun, the noun that it stands for, and another noun that it could stand for."""

    sentence: Sentence
    pronoun: int  # index of the pronoun
    noun: int  # index of the noun that it stands for
    other: int  # index of the other noun


def pronoun_sentences() -> tuple[PronounSentence, ...]:
    """Return 25 pairs of sentences; those of a pair differ in the last word, which decides what the pronoun means.

    "The cat sat on the mat because it was tired", and "... because it was soft": the first noun is right in one
    sentence of a pair and the second noun in the other, so neither position nor the nouns give the answer away.
    """
    content = files("bothways.explain").joinpath("pronouns.jsonl").read_text(encoding="utf-8")
    found = []
    for line in content.splitlines():
        row = json.loads(line)
        words = Words.of_text(row["text"]).listed()
        places = (words.index(row[name]) for name in ("pronoun", "noun", "other"))
        found.append(PronounSentence(Sentence(tuple(words)), *places))
    return tuple(found)


def read_sentences(
    source: Source, *, limit: int | None = None, tokens: str = "tokens", text: tuple[str, ...] = ("text",)
) -> list[Sentence]:
    """Return the sentences of a source: CoNLL-U with trees, or rows with words or a text.

    Args:
        source: As for `bothways.data.read_rows`.
        limit: Maximum number of sentences. Default: all.
        tokens: Column of words.
        text: Columns of the text of rows without words.

    Raises:
        InvalidInput: The source cannot be read, or a row is invalid.
    """
    found = []
    for row in read_rows(source):
        words = given_words(row, tokens, text).listed()
        heads, relations = row.values.get("heads"), row.values.get("relations")
        if heads is None or relations is None:
            found.append(Sentence(tuple(words)))
        elif isinstance(heads, list) and isinstance(relations, list) and len(heads) == len(relations) == len(words):
            found.append(Sentence(tuple(words), tuple(map(int, heads)), tuple(map(str, relations))))
        else:
            raise InvalidInput(f"{row.where}: expected a head and a relation for each word, got heads {shown(heads)}.")
        if len(found) == limit:
            break
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _SentenceAttention:
    """The attention weights of all heads in one sentence."""

    window: Window  # the tokens
    weights: Floats  # attention (L, N, n, n)
    words_n: NDArray[np.int64]  # the word index of each token; -1 for none
    count: int  # W

    def of_words(self) -> Floats:
        """Return the attention from word to word (L, N, W, W); zero from and to words without a token."""
        member_Wn = (self.words_n == np.arange(self.count)[:, None]).astype(np.float64)
        mean_Wn = member_Wn / np.maximum(member_Wn.sum(1, keepdims=True), 1)
        between: Floats = mean_Wn @ self.weights @ member_Wn.T
        return between


def _sentence_attentions(
    model: PretrainedEncoder, encoder: Encoder, sentences: Sequence[Sequence[str]]
) -> Iterator[tuple[int, _SentenceAttention]]:
    """Yield the index and the attention of each sentence that fits into a window."""
    limit = model.config.max_length or 512
    for start in range(0, len(sentences), _BATCH):
        read = [ReadWords.of(Words.of_list(each)) for each in sentences[start : start + _BATCH]]
        texts = [each.text for each in read]
        encoded = model.tokenizer.encode(texts, max_length=limit, on_overflow="truncate", offsets=True)
        fit = [number for number, each in enumerate(encoded) if not each.dropped_tokens]
        if not fit:
            continue
        windows = [encoded[number].windows[0] for number in fit]
        record = Recorder(attentions=True)
        with torch.inference_mode():
            encoder(pack([each.ids for each in windows], [each.types for each in windows], model.device), record=record)
        for at, (number, window) in enumerate(zip(fit, windows, strict=True)):
            weights = torch.stack([layer[at] for layer in record.attentions]).double().cpu().numpy()
            spans = list(zip(read[number].begins_W.tolist(), read[number].ends_W.tolist(), strict=True))
            words_n = overlapping(spans, Places.of(window))
            yield start + number, _SentenceAttention(window, weights, words_n, len(spans))


@dataclass(slots=True)
class _Tally:
    """Sums of scores by role, over tokens and words."""

    sums: dict[str, Floats] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Kind] = field(default_factory=dict)
    uniform: Counter[str] = field(default_factory=Counter)
    distances: dict[str, Counter[int]] = field(default_factory=dict)

    def mean(self, role: str) -> Floats:
        """Return the mean scores of all heads (L, N)."""
        return self.sums[role] / self.counts[role]

    def without(self, role: str) -> float:
        """Return the score of the baseline without a model, see `HeadRole`."""
        if role == PRONOUN:
            return 0.5  # by the construction of the sentences
        if self.kinds[role] == "weight":
            return float(self.uniform[role]) / self.counts[role]
        return self.distances[role].most_common(1)[0][1] / self.counts[role]

    def _add(self, role: str, kind: Kind, values: Floats) -> None:
        """Add scores (L, N, rows) of some tokens or words to a role."""
        self.sums[role] = self.sums.get(role, 0.0) + values.sum(-1)
        self.counts[role] += values.shape[-1]
        self.kinds[role] = kind

    def add_tokens(self, attention: _SentenceAttention, model: PretrainedEncoder) -> None:
        """Add the weights from tokens of words to certain positions, special tokens and equal tokens elsewhere."""
        ids_n, size = np.array(attention.window.ids), len(attention.window.ids)
        inside = np.flatnonzero(attention.words_n != NO_WORD)
        equal_nn = (ids_n[:, None] == ids_n) & ~np.eye(size, dtype=bool)
        previous_nn, next_nn = np.eye(size, k=-1, dtype=bool), np.eye(size, k=1, dtype=bool)
        first = np.zeros((size, size), dtype=bool)
        first[:, 0] = True
        roles = {
            "first token": first,
            "[CLS]": np.tile(ids_n == model.tokenizer.cls_id, (size, 1)),
            "[SEP]": np.tile(ids_n == model.tokenizer.sep_id, (size, 1)),
            "previous token": previous_nn,
            "next token": next_nn,
            "the token itself": np.eye(size, dtype=bool),
            "same token elsewhere": equal_nn,
        }
        for role, pairs_nn in roles.items():
            rows = inside[pairs_nn[inside].any(1)]
            if len(rows):
                self._add(role, "weight", (attention.weights[:, :, rows] * pairs_nn[rows]).sum(-1))
                self.uniform[role] += pairs_nn[rows].sum() / size

    def add_tree(self, sentence: Sentence, attention: _SentenceAttention) -> None:
        """Score the word that each word attends to most: right if it is its syntactic head, or its dependent."""
        if not sentence.heads:
            return
        weights = attention.of_words()
        weights[:, :, np.arange(attention.count), np.arange(attention.count)] = -1
        most_LNW = weights.argmax(-1)
        seen = set(attention.words_n.tolist())
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            name, other = relation.split(":")[0], head - 1
            if head == 0 or word not in seen or other not in seen:
                continue
            for role, reader, right in ((f"{name} to its head", word, other), (f"head to its {name}", other, word)):
                self._add(role, "accuracy", (most_LNW[..., reader] == right)[..., None].astype(np.float64))
                self.distances.setdefault(role, Counter())[right - reader] += 1

    def add_pronoun(self, sentence: PronounSentence, attention: _SentenceAttention) -> None:
        """Score a pronoun: right if it attends more to its noun than to the other noun, half right in a tie."""
        weights = attention.of_words()[:, :, sentence.pronoun]
        noun_LN, other_LN = weights[..., sentence.noun], weights[..., sentence.other]
        right_LN = (noun_LN > other_LN) + 0.5 * (noun_LN == other_LN)
        self._add(PRONOUN, "accuracy", right_LN[..., None])
