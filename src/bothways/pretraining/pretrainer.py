"""Pre-training by a recipe, from a corpus to an encoder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import torch

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.choices import GoldenSource
from bothways.data.shards import TokenCorpus
from bothways.devices import pick_device
from bothways.encoder.heads import Head, ScoreHead, new_head
from bothways.errors import InvalidInput, NotFitted, UnsupportedConfig
from bothways.families import FAMILIES, Family, HeadName
from bothways.objectives.corpus import (
    CorpusPieces,
    EitherDocument,
    NextSentence,
    PieceSource,
    SegmentPairs,
    SegmentRelation,
    SentenceOrder,
)
from bothways.objectives.masked_lm import MaskDecoder, MaskedLM
from bothways.objectives.masking import Corruption, Masker, Masking
from bothways.objectives.permutation_lm import Permutation, PermutationLM, Permuter
from bothways.objectives.pretraining import PretrainingModel
from bothways.objectives.replaced_tokens import (
    DisentangledEmbeddings,
    EmbeddingSharing,
    ReplacedTokens,
    SharedEmbeddings,
)
from bothways.pretraining.courses import BatchWarmup
from bothways.pretraining.models import check_lengths, masked_lm_head, narrowed, new_model, settings_over
from bothways.pretraining.recipes import (
    DistilledMaskedLM,
    MaskedLanguageModelling,
    PermutationLanguageModelling,
    PretrainingTask,
    ReplacedTokenDetection,
    ScaledRecipe,
)
from bothways.pretraining.runs import CorpusRun, card_of, check_no_epochs, course_options, parameters
from bothways.storage import MODEL, new_folder
from bothways.text import TextTokenizer
from bothways.training.options import TrainingArguments
from bothways.training.stages import measured, stages_of
from bothways.training.state import TrainingRecord, seeded

_RELATIONS: dict[str, SegmentRelation] = {"next_sentence": NextSentence(), "sentence_order": SentenceOrder()}
_SHARING: dict[str, EmbeddingSharing] = {"shared": SharedEmbeddings(), "disentangled": DisentangledEmbeddings()}
_REPLACED: HeadName = "replaced_token"
_PERMUTED: HeadName = "permutation_lm"


def assemble(
    recipe: ScaledRecipe, tokenizer: TextTokenizer, seed: int, device: torch.device, warmup: BatchWarmup | None = None
) -> tuple[CorpusRun, PretrainedEncoder | None]:
    """Create a recipe's model with random weights, and its training run; return the run and the generator, if any.

    The seed determines the weights, pairs of segments and targets.
    """
    family = FAMILIES[recipe.recipe.family]
    _check_heads(family, recipe.task)
    assembly = _Assembly(recipe, family, tokenizer.with_template(family.tokenizer.template), seed, device, warmup)
    match recipe.task:
        case MaskedLanguageModelling() as task:
            return assembly.masked(task), None
        case ReplacedTokenDetection() as task:
            return assembly.replaced(task)
        case PermutationLanguageModelling() as task:
            return assembly.permuted(task), None
        case DistilledMaskedLM(masking=masking):  # without a teacher, only masked language modelling is left
            return assembly.masked(MaskedLanguageModelling(masking)), None


def _check_heads(family: Family, task: PretrainingTask) -> None:
    """Raise InvalidInput if the family lacks a head of the objective, listing the families that have it."""
    needed: tuple[HeadName, ...] = ("masked_lm",)
    match task:
        case PermutationLanguageModelling():
            needed = (_PERMUTED,)
        case MaskedLanguageModelling(relation=relation) if relation is not None:
            needed = ("masked_lm", relation)
        case _:
            pass
    if missing := [name for name in needed if name not in family.heads]:
        able = [each.title for each in FAMILIES.values() if each.heads.keys() >= {*needed}]
        raise InvalidInput(
            f"this objective needs a {missing[-1]} head, which {family.title} does not have; use a family that has it: "
            f"{', '.join(able)}."
        )


@dataclass(frozen=True, slots=True)
class _Assembly:
    recipe: ScaledRecipe
    family: Family
    tokenizer: TextTokenizer
    seed: int
    device: torch.device
    warmup: BatchWarmup | None

    def masked(self, task: MaskedLanguageModelling) -> CorpusRun:
        name = task.relation
        heads: tuple[HeadName, ...] = ("masked_lm",) if name is None else ("masked_lm", name)
        model = self._drawn(settings_over(self.recipe, self.tokenizer), *heads)
        decoder = None
        if task.decoder:
            with seeded(self.seed + 1):
                decoder = MaskDecoder(model.config).to(self.device)
        relation = None if name is None else _score_head(model.heads[name])
        trained = MaskedLM(model.encoder, masked_lm_head(model), relation, decoder)
        pairs = None if name is None else _RELATIONS[name]
        return self._run(model, trained, self._masker(task.masking), pairs)

    def replaced(self, task: ReplacedTokenDetection) -> tuple[CorpusRun, PretrainedEncoder]:
        settings = settings_over(self.recipe, self.tokenizer)
        stored: tuple[HeadName, ...] = (_REPLACED,) if _REPLACED in self.family.heads else ()
        model = self._drawn(settings, *stored)
        generator = self._drawn(narrowed(settings, self.recipe.recipe.keys, task.generator), "masked_lm", seed_offset=1)
        if stored:
            head = _score_head(model.heads[_REPLACED])
        else:  # a family without such a head gets the one of ELECTRA
            with seeded(self.seed):
                kind = FAMILIES["electra"].head(_REPLACED, settings).kind
                head = _score_head(new_head(model.config, kind)).to(self.device)
        filler, sharing = masked_lm_head(generator), _SHARING[task.embeddings]
        trained = ReplacedTokens(generator.encoder, filler, model.encoder, head, embeddings=sharing, weight=task.weight)
        return self._run(model, trained, self._masker(task.masking)), generator

    def permuted(self, task: PermutationLanguageModelling) -> CorpusRun:
        model = self._drawn(settings_over(self.recipe, self.tokenizer), _PERMUTED)
        trained = PermutationLM(model.encoder, masked_lm_head(model, _PERMUTED))
        permuter = Permuter(self.tokenizer, Permutation(partial=task.partial), self.seed)
        return self._run(model, trained, permuter, EitherDocument(), task.memory)

    def _drawn(self, settings: dict[str, object], *heads: HeadName, seed_offset: int = 0) -> PretrainedEncoder:
        model = new_model(self.family, settings, self.tokenizer, heads, seed=self.seed + seed_offset)
        for module in (model.encoder, *model.heads.values()):
            module.to(self.device)
        return model

    def _masker(self, masking: Masking) -> Masker:
        return Masker(self.tokenizer, masking, self.seed)

    def _run(
        self,
        model: PretrainedEncoder,
        trained: PretrainingModel,
        corruption: Corruption,
        pairs: SegmentRelation | None = None,
        memory: int = 0,
    ) -> CorpusRun:
        def source(corpus: TokenCorpus, length: int) -> PieceSource:
            if pairs is None:
                return CorpusPieces.of(corpus, self.tokenizer, length)
            return SegmentPairs.of(corpus, self.tokenizer, length, pairs, self.seed)

        return CorpusRun(model, trained, corruption, source, self.recipe.course, memory, self.warmup)


def _score_head(head: Head) -> ScoreHead:
    if not isinstance(head, ScoreHead):
        raise UnsupportedConfig(
            f"expected a next_sentence, sentence_order or replaced_token head, got {type(head).__name__}."
        )
    return head


GENERATOR = "generator"
"""Name of the generator's folder within the folder of its encoder."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """Result of a run: the encoder with its heads, the generator of replaced token detection or None, and the card."""

    model: PretrainedEncoder
    generator: PretrainedEncoder | None
    card: Mapping[str, object]


class Pretrainer:
    """Pre-trains an encoder from scratch by a recipe, with any tokenizer.

    >>> from bothways.pretraining.recipes import find_recipe, scaled
    >>> scaled(find_recipe("electra"), "tiny").course.updates
    2000

    Args:
        recipe: The recipe, as returned by `scaled`.
        tokenizer: The tokenizer; special tokens are added as in the recipe's family.
        device: Training device; ``"auto"`` takes a GPU if there is one.

    Raises:
        InvalidInput: The recipe's sequences are longer than its model's limit.
    """

    def __init__(self, recipe: ScaledRecipe, tokenizer: TextTokenizer, *, device: str | torch.device = "auto") -> None:
        check_lengths(recipe)
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.device = pick_device(device)
        self._pretrained: Pretrained | None = None

    def fit(
        self, corpus: TokenCorpus, *, batch_warmup: BatchWarmup | None = None, **options: Unpack[TrainingArguments]
    ) -> TrainingRecord:
        """Train a new, randomly initialised model; options override the recipe.

        Args:
            corpus: Training text. Some of its documents are held out for validation.
            batch_warmup: Growth of the batch at the beginning, instead of the recipe's.
            options: Fields of `TrainingOptions`. A batch size other than the recipe's also changes the learning rate;
                an ``optimizer`` replaces the recipe's, including its weight decay. Give the length in updates or
                tokens, not in epochs.

        Raises:
            InvalidInput: The corpus is empty, for another tokenizer or has too few documents for the recipe, or an
                option is invalid.
            UnsupportedConfig: A setting of the recipe is not supported.
        """
        check_no_epochs(options)
        recipe = self.recipe.changed(updates=options.get("updates"), batch=options.get("batch_size"))
        training = course_options(recipe.course, options)
        named = {"recipe": recipe.recipe.name, "scale": recipe.scale}
        with stages_of(training) as times:
            run, generator = assemble(recipe, self.tokenizer, training.seed, self.device, batch_warmup)
            record = measured(run.train(corpus, training, named), times)
        card = {**named, "source": recipe.recipe.source, **card_of(corpus, record)}
        model = run.model
        if generator is not None and isinstance(run.trained, ReplacedTokens):
            theirs, ours = run.trained.separate()
            model, generator = replace(model, encoder=ours), replace(generator, encoder=theirs)
        self._pretrained = Pretrained(model, generator, card)
        return record

    @property
    def fitted(self) -> Pretrained:
        """Result of the last run."""
        if self._pretrained is None:
            raise NotFitted("no model is pre-trained yet: call fit first.")
        return self._pretrained

    def facts(self) -> dict[str, object]:
        return {"recipe": self.recipe.recipe.name, "parameters": parameters(self.fitted.model)}

    def save(self, folder: str | Path, *, overwrite: bool = False, golden: GoldenSource | None = "validation") -> None:
        """Write encoder, heads and tokenizer in the layout of transformers, and a generator in a subfolder.

        The inputs of the golden answers are neutral ones, since a corpus is not quoted; None saves no golden answers.

        Raises:
            NotFitted: No model is pre-trained yet.
            OutputExists: The folder exists and ``overwrite`` is false, or it is not a model.
            OutOfDisk: The disk is full; nothing is left behind.
        """
        fitted = self.fitted
        with new_folder(folder, overwrite=overwrite, kind=MODEL) as new:
            fitted.model.write(new, {"card": dict(fitted.card)})
            if fitted.generator is not None:
                (new / GENERATOR).mkdir()
                fitted.generator.write(new / GENERATOR, {"card": dict(fitted.card)})
            fitted.model.write_golden(new, golden and "neutral")
