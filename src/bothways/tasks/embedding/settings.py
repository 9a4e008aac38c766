"""The settings of a sentence embedder: pooling, layers, prompts and similarity, and how long texts are read.

They are read from the files of sentence-transformers in a folder, from ``bothways.json``, which takes precedence, and
from the options of the caller, which take precedence over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, get_args

from bothways.checkpoints.schema import StoredVectors, at_most
from bothways.checkpoints.sentence_transformers import SentenceSettings, stored_length
from bothways.checkpoints.vector_layers import VectorLayer
from bothways.choices import Overflow, Pooling, SimilarityName
from bothways.errors import InvalidInput, not_one_of
from bothways.tasks.backend import USUAL_LENGTH, Backend, OpenOptions, kept_stride
from bothways.tasks.embedding.representation import Role
from bothways.tasks.embedding.spec import EmbeddingColumns, EmbeddingOpening, Pairs, Triplets
from bothways.tasks.spec import options_of

BackendT = TypeVar("BackendT", bound=Backend)

# The names of the prompts of a role, in the order in which they are looked for.
_PROMPTS: dict[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The stored options of an embedder."""

    poolings: tuple[Pooling, ...]  # their vectors are concatenated
    unit_length: bool  # vectors are scaled to length 1, so that their inner product is the cosine
    dimensions: int | None  # number of leading dimensions to keep, before vectors are scaled; all if None
    max_length: int  # maximum tokens of a window, including special tokens
    on_overflow: Overflow
    stride: int | None = None  # tokens that adjacent windows share; a quarter of the text in a window if None
    width: int = 0  # dimensions of a vector before it is truncated
    layers: tuple[VectorLayer, ...] = ()  # layers on the pooled vectors
    include_prompt: bool = True  # the tokens of a prompt are pooled too
    truncate_dim: int | None = None  # number of leading dimensions to keep of the scaled vectors; all if None
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts to prepend, by name
    default_prompt: str | None = None  # the name of the prompt that is prepended unless another is chosen
    similarity: SimilarityName = "cosine"  # the function that compares two vectors

    @property
    def pooling(self) -> str:
        """The poolings, joined by ``+``."""
        return "+".join(self.poolings)

    @property
    def merges_by_maximum(self) -> bool:
        """True if a text's windows are merged by the maximum in each dimension, False if by a mean."""
        return self.poolings == ("max",) and not self.layers

    def changed(self, options: EmbeddingOpening, hidden: int) -> EmbeddingSettings:
        """Return the settings with explicit options applied; ``hidden`` is the encoder's width."""
        found = self
        if options.pooling is not None:
            poolings = (check_pooling(options.pooling),)
            if self.layers and len(self.poolings) != 1:
                raise InvalidInput(
                    f"expected the pooling {self.pooling!r}, which the layers of this embedder were trained on, got "
                    f"{options.pooling!r}: leave pooling out."
                )
            found = replace(found, poolings=poolings, width=found.width if self.layers else hidden)
        if options.unit_length is not None:
            found = replace(found, unit_length=options.unit_length)
        if options.dimensions is not None:
            _check_whole("dimensions", options.dimensions, 1, found.width)
            found = replace(found, dimensions=options.dimensions, truncate_dim=None)
        return found

    def prompt_of(self, prompt: str | None = None, prompt_name: str | None = None, *, role: Role | None = None) -> str:
        """Return the prompt to prepend to texts: an explicit one, else the named one, that of the role, or the default.

        The role ``"query"`` has the prompt of this name, and ``"document"`` the first that is not empty of
        ``document``, ``passage`` and ``corpus``; without them, texts with a role have no prompt.

        Raises:
            InvalidInput: Both a prompt and a name are given, or there is no prompt of this name.
        """
        if prompt is not None and prompt_name is not None:
            raise InvalidInput(
                f"give a prompt or the name of one, not both: got {prompt!r:.80} and {prompt_name!r:.80}."
            )
        known = {"query": "", "document": "", **self.prompts}
        if prompt_name is not None:
            if prompt_name not in known:
                there = ", ".join(map(repr, self.prompts)) or "no prompts"
                raise InvalidInput(
                    f"expected the name of a prompt of this embedder, which has {there}, got {prompt_name!r}."
                )
            return known[prompt_name]
        if prompt is not None:
            return prompt
        if role is not None:
            return next((known[name] for name in _PROMPTS[role] if known.get(name)), "")
        return "" if self.default_prompt is None else known[self.default_prompt]

    def in_files(self) -> SentenceSettings:
        """Return the settings for the files of sentence-transformers."""
        return SentenceSettings(
            poolings=self.poolings,
            include_prompt=self.include_prompt,
            layers=self.layers,
            unit_length=self.unit_length,
            dimensions=self.dimensions,
            truncate_dim=self.truncate_dim,
            prompts=self.prompts,
            default_prompt=self.default_prompt,
            similarity=self.similarity,
            max_length=self.max_length,
        )

    def prompts_of(self, columns: EmbeddingColumns) -> tuple[str, str]:
        """Return the prompts of the first text of a row and of its other texts.

        Texts that are ranked for an anchor are documents, and the anchor is a query; other texts have the default
        prompt.
        """
        match columns:
            case Pairs() | Triplets():
                return self.prompt_of(role="query"), self.prompt_of(role="document")
        return self.prompt_of(), self.prompt_of()


def with_prompt(text: str, prompt: str) -> str:
    """Return a text with a prompt in front; a value that is empty or not a text, which is refused later, as it is."""
    match text:
        case str() if text.strip():
            return prompt + text
    return text


# --- opening ---


def stored_settings(backend: Backend) -> EmbeddingSettings:
    """Return the settings of an opened model, with the options that the caller gave."""
    folder, hidden, reading = backend.files.folder, backend.config.hidden, backend.reading
    own = StoredVectors.of(backend.files.extras)
    stored = SentenceSettings.read(folder, hidden=hidden, cls_is_last=backend.tokenizer.cls_is_last)
    poolings = stored.poolings or ("mean",)
    if own.pooling is not None:
        poolings = tuple(map(check_pooling, own.pooling.split("+")))
    unit_length = own.unit_length if own.unit_length is not None else stored.unit_length is not False
    stored = replace(stored, poolings=poolings)
    width = stored.width(hidden)
    kept = None if stored.truncate_dim is None or stored.truncate_dim >= width else stored.truncate_dim
    dimensions, truncate_dim = at_most("dimensions", own.dimensions, width) or stored.dimensions, kept
    if own.dimensions is not None:
        truncate_dim = None
    elif not unit_length:
        dimensions, truncate_dim = min((each for each in (dimensions, truncate_dim) if each), default=None), None
    settings = EmbeddingSettings(
        poolings,
        unit_length,
        dimensions,
        reading.max_length,
        reading.on_overflow,
        reading.stride,
        width,
        stored.layers,
        stored.include_prompt,
        truncate_dim,
        stored.prompts,
        stored.default_prompt,
        stored.similarity,
    )
    return settings.changed(options_of(EmbeddingOpening, backend.options), hidden)


def reading_as_stored(backend: BackendT, options: OpenOptions) -> BackendT:
    """Apply the maximum length and stride: the explicit options, else those stored in the folder."""
    own, limit = StoredVectors.of(backend.files.extras), backend.config.max_length or USUAL_LENGTH
    before = (
        at_most("max_length", own.max_length, limit)
        or _stored_length(backend.files.folder, limit)
        or min(backend.tokenizer.model_max_length or limit, limit)
    )
    length, stride = options.get("max_length") or before, options.get("stride")
    if stride is None:
        special = backend.tokenizer.special_count(pair=False)
        stride = kept_stride(at_most("stride", own.stride, limit - 1), length, before, special)
    else:
        _check_whole("stride", stride, 0, length - 1)
    return replace(backend, reading=replace(backend.reading, max_length=length, stride=stride))


def check_pooling(pooling: object) -> Pooling:
    """Validate the name of a pooling."""
    known: tuple[Pooling, ...] = get_args(Pooling)
    for name in known:
        if pooling == name:
            return name
    raise not_one_of("pooling", pooling, known)


def _stored_length(folder: Path, limit: int) -> int | None:
    """Return the maximum length in the files of sentence-transformers, at most ``limit``."""
    length = stored_length(folder)
    return None if length is None else min(length, limit)


def _check_whole(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidInput(f"{name} must lie between {lowest} and {highest}, got {value}.")
