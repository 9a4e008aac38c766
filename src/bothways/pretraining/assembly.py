"""Assembly of a recipe's training: a new model, its objective, and its sequences."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.data.shards import TokenCorpus
from bothways.encoder.heads import Head, ScoreHead, new_head
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import FAMILIES, Family, HeadName
from bothways.objectives.corpus import CorpusPieces
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
from bothways.objectives.segments import EitherDocument, NextSentence, SegmentPairs, SegmentRelation, SentenceOrder
from bothways.pretraining.courses import BatchWarmup
from bothways.pretraining.models import masked_lm_head, narrowed, new_model, settings_over
from bothways.pretraining.recipes import (
    DistilledMaskedLM,
    MaskedLanguageModelling,
    PermutationLanguageModelling,
    PretrainingTask,
    ReplacedTokenDetection,
    ScaledRecipe,
)
from bothways.pretraining.runs import CorpusRun, DividedSource
from bothways.text import TextTokenizer
from bothways.training.seeding import seeded

_RELATIONS: dict[str, SegmentRelation] = {"next_sentence": NextSentence(), "sentence_order": SentenceOrder()}
_SHARING: dict[str, EmbeddingSharing] = {"shared": SharedEmbeddings(), "disentangled": DisentangledEmbeddings()}
_REPLACED: HeadName = "replaced_token"
_PERMUTED: HeadName = "permutation_lm"


Kept = Callable[[], tuple[PretrainedEncoder, PretrainedEncoder | None]]
"""Gives the trained encoder and a generator, if any, in the form to save."""


def assemble(
    recipe: ScaledRecipe, tokenizer: TextTokenizer, seed: int, device: torch.device, warmup: BatchWarmup | None = None
) -> tuple[CorpusRun, Kept]:
    """Draw a recipe's model and put its training together; the seed draws weights, pairs of segments and targets.

    Raises:
        InvalidInput: The family has no head for the recipe's objective.
        UnsupportedConfig: A setting of the recipe is not supported.
    """
    family = FAMILIES[recipe.recipe.family]
    _check_heads(family, recipe.task)
    assembly = _Assembly(recipe, family, tokenizer.with_template(family.tokenizer.template), seed, device, warmup)
    match recipe.task:
        case MaskedLanguageModelling() as task:
            return assembly.masked(task)
        case ReplacedTokenDetection() as task:
            return assembly.replaced(task)
        case PermutationLanguageModelling() as task:
            return assembly.permuted(task)
        case DistilledMaskedLM(masking=masking):  # without a teacher, masked language modelling is left
            return assembly.masked(MaskedLanguageModelling(masking))


def _check_heads(family: Family, task: PretrainingTask) -> None:
    """Refuse an objective whose head the family lacks, and list the families that have it."""
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
            f"this objective needs a {missing[-1]} head, which {family.title} does not have; use one of: "
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

    def masked(self, task: MaskedLanguageModelling) -> tuple[CorpusRun, Kept]:
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
        return self._run(model, trained, self._masker(task.masking), pairs), lambda: (model, None)

    def replaced(self, task: ReplacedTokenDetection) -> tuple[CorpusRun, Kept]:
        settings = settings_over(self.recipe, self.tokenizer)
        stored: tuple[HeadName, ...] = (_REPLACED,) if _REPLACED in self.family.heads else ()
        model = self._drawn(settings, *stored)
        generator = self._drawn(narrowed(settings, self.recipe.recipe.keys, task.generator), "masked_lm", more=1)
        if stored:
            head = _score_head(model.heads[_REPLACED])
        else:  # a family without such a head gets ELECTRA's
            with seeded(self.seed):
                kind = FAMILIES["electra"].head(_REPLACED, settings).kind
                head = _score_head(new_head(model.config, kind)).to(self.device)
        filler, sharing = masked_lm_head(generator), _SHARING[task.embeddings]
        trained = ReplacedTokens(generator.encoder, filler, model.encoder, head, embeddings=sharing, weight=task.weight)

        def kept() -> tuple[PretrainedEncoder, PretrainedEncoder]:
            ours, theirs = trained.separate()[::-1]
            return replace(model, encoder=ours), replace(generator, encoder=theirs)

        return self._run(model, trained, self._masker(task.masking)), kept

    def permuted(self, task: PermutationLanguageModelling) -> tuple[CorpusRun, Kept]:
        model = self._drawn(settings_over(self.recipe, self.tokenizer), _PERMUTED)
        trained = PermutationLM(model.encoder, masked_lm_head(model, _PERMUTED))
        permuter = Permuter(self.tokenizer, Permutation(partial=task.partial), self.seed)
        run = self._run(model, trained, permuter, EitherDocument(), task.memory)
        return run, lambda: (model, None)

    def _drawn(self, settings: dict[str, object], *heads: HeadName, more: int = 0) -> PretrainedEncoder:
        model = new_model(self.family, settings, self.tokenizer, heads, seed=self.seed + more)
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
        def source(corpus: TokenCorpus, length: int) -> DividedSource:
            if pairs is None:
                return CorpusPieces.of(corpus, self.tokenizer, length)
            return SegmentPairs.of(corpus, self.tokenizer, length, pairs, self.seed)

        return CorpusRun(model, trained, corruption, source, self.recipe.course, memory, self.warmup)


def _score_head(head: Head) -> ScoreHead:
    if not isinstance(head, ScoreHead):
        raise UnsupportedConfig(f"expected a head for scores, got {type(head).__name__}.")
    return head
