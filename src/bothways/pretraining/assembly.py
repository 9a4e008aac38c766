"""Assembly of a recipe's training: a new model, its objective, and its sequences."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.data.shards import TokenCorpus
from bothways.encoder.heads import Head, ScoreHead, new_head
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import FAMILIES, Family, HeadName
from bothways.objectives import (
    CorpusPieces,
    Corruption,
    DisentangledEmbeddings,
    EitherDocument,
    EmbeddingSharing,
    MaskDecoder,
    MaskedLM,
    Masker,
    NextSentence,
    Permutation,
    PermutationLM,
    Permuter,
    ReplacedTokens,
    SegmentPairs,
    SegmentRelation,
    SentenceOrder,
    SharedEmbeddings,
)
from bothways.objectives.pretraining import PretrainingModel
from bothways.pretraining.models import masked_lm_head, narrowed, new_model, settings_over
from bothways.pretraining.recipes import (
    DistilledMaskedLM,
    MaskedLanguageModelling,
    PermutationLanguageModelling,
    PretrainingTask,
    ReplacedTokenDetection,
    ScaledRecipe,
)
from bothways.pretraining.runs import DividedSource
from bothways.text import TextTokenizer
from bothways.training.seeding import seeded

_RELATIONS: dict[str, SegmentRelation] = {"next_sentence": NextSentence(), "sentence_order": SentenceOrder()}
_SHARING: dict[str, EmbeddingSharing] = {"shared": SharedEmbeddings(), "disentangled": DisentangledEmbeddings()}
_REPLACED: HeadName = "replaced_token"
_PERMUTED: HeadName = "permutation_lm"


@dataclass(frozen=True, slots=True)
class Assembly:
    """A model and its training.

    Attributes:
        model: The encoder to pre-train.
        trained: The encoder with all other trained parts, and their losses.
        corruption: Chooses the prediction targets.
        source: Cuts a corpus into sequences of a length.
        kept: Returns the encoder and a generator in the form to save.
        memory: Tokens of its document that a sequence remembers.
    """

    model: PretrainedEncoder
    trained: PretrainingModel
    corruption: Corruption
    source: Callable[[TokenCorpus, int], DividedSource]
    kept: Callable[[], tuple[PretrainedEncoder, PretrainedEncoder | None]]
    memory: int = 0


def assemble(recipe: ScaledRecipe, tokenizer: TextTokenizer, seed: int, device: torch.device) -> Assembly:
    """Draw a recipe's model and put its training together.

    Args:
        recipe: The recipe.
        tokenizer: Tokenizer of the model.
        seed: Draws weights, pairs of segments and targets.
        device: Training device.

    Raises:
        InvalidInput: The family has no head for the recipe's objective.
        UnsupportedConfig: A setting of the recipe is not supported.
    """
    family = FAMILIES[recipe.recipe.family]
    _check_heads(family, recipe.task)
    framed = tokenizer.with_template(family.tokenizer.template)
    match recipe.task:
        case MaskedLanguageModelling() as task:
            return _masked(recipe, family, framed, task, seed, device)
        case ReplacedTokenDetection() as task:
            return _replaced(recipe, family, framed, task, seed, device)
        case PermutationLanguageModelling() as task:
            return _permuted(recipe, family, framed, task, seed, device)
        case DistilledMaskedLM(masking=masking):  # without a teacher, masked language modelling is left
            return _masked(recipe, family, framed, MaskedLanguageModelling(masking), seed, device)


def _check_heads(family: Family, task: PretrainingTask) -> None:
    """Refuse an objective that needs a head which the family does not have.

    Raises:
        InvalidInput: The head is missing; the message lists families that have it.
    """
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


def _masked(
    recipe: ScaledRecipe,
    family: Family,
    tokenizer: TextTokenizer,
    task: MaskedLanguageModelling,
    seed: int,
    device: torch.device,
) -> Assembly:
    heads: tuple[HeadName, ...] = ("masked_lm",) if task.relation is None else ("masked_lm", task.relation)
    model = _on(device, new_model(family, settings_over(recipe, tokenizer), tokenizer, heads, seed=seed))
    relation = None if task.relation is None else _score_head(model.heads[task.relation])
    decoder = _mask_decoder(model, seed) if task.decoder else None
    trained = MaskedLM(model.encoder, masked_lm_head(model), relation, decoder)

    def source(corpus: TokenCorpus, length: int) -> DividedSource:
        if task.relation is None:
            return CorpusPieces.of(corpus, tokenizer, length)
        return SegmentPairs.of(corpus, tokenizer, length, _RELATIONS[task.relation], seed)

    return Assembly(model, trained, Masker(tokenizer, task.masking, seed), source, lambda: (model, None))


def _mask_decoder(model: PretrainedEncoder, seed: int) -> MaskDecoder:
    with seeded(seed + 1):
        return MaskDecoder(model.config).to(model.encoder.embedding.tokens.weight.device)


def _replaced(
    recipe: ScaledRecipe,
    family: Family,
    tokenizer: TextTokenizer,
    task: ReplacedTokenDetection,
    seed: int,
    device: torch.device,
) -> Assembly:
    settings = settings_over(recipe, tokenizer)
    stored: tuple[HeadName, ...] = (_REPLACED,) if _REPLACED in family.heads else ()
    model = _on(device, new_model(family, settings, tokenizer, stored, seed=seed))
    narrow = narrowed(settings, recipe.recipe.keys, task.generator)
    generator = _on(device, new_model(family, narrow, tokenizer, ("masked_lm",), seed=seed + 1))
    if stored:
        head = _score_head(model.heads[_REPLACED])
    else:  # a family without such a head gets ELECTRA's
        with seeded(seed):
            kind = FAMILIES["electra"].head(_REPLACED, settings).kind
            head = _score_head(new_head(model.config, kind)).to(device)
    generating = masked_lm_head(generator)
    sharing = _SHARING[task.embeddings]
    trained = ReplacedTokens(generator.encoder, generating, model.encoder, head, embeddings=sharing, weight=task.weight)

    def kept() -> tuple[PretrainedEncoder, PretrainedEncoder]:
        ours, theirs = trained.separate()[::-1]
        return replace(model, encoder=ours), replace(generator, encoder=theirs)

    def source(corpus: TokenCorpus, length: int) -> DividedSource:
        return CorpusPieces.of(corpus, tokenizer, length)

    return Assembly(model, trained, Masker(tokenizer, task.masking, seed), source, kept)


def _permuted(
    recipe: ScaledRecipe,
    family: Family,
    tokenizer: TextTokenizer,
    task: PermutationLanguageModelling,
    seed: int,
    device: torch.device,
) -> Assembly:
    model = _on(device, new_model(family, settings_over(recipe, tokenizer), tokenizer, (_PERMUTED,), seed=seed))
    trained = PermutationLM(model.encoder, masked_lm_head(model, _PERMUTED))

    def source(corpus: TokenCorpus, length: int) -> DividedSource:
        return SegmentPairs.of(corpus, tokenizer, length, EitherDocument(), seed)

    corruption = Permuter(tokenizer, Permutation(partial=task.partial), seed)
    return Assembly(model, trained, corruption, source, lambda: (model, None), task.memory)


def _score_head(head: Head) -> ScoreHead:
    if not isinstance(head, ScoreHead):
        raise UnsupportedConfig(f"expected a head for scores, got {type(head).__name__}.")
    return head


def _on(device: torch.device, model: PretrainedEncoder) -> PretrainedEncoder:
    for module in (model.encoder, *model.heads.values()):
        module.to(device)
    return model
