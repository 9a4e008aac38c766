"""Recipes of pre-training: how published encoders were trained, and smaller versions of these trainings.

A `PretrainingRecipe` is data: an architecture, an objective, and a `Course` (length and optimizer settings) at the
published scale. `scaled` returns the recipe at a size that one machine can train.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias

from bothways.choices import RecipeName, RecipeScale, TokenizerKind
from bothways.errors import InvalidInput
from bothways.objectives.masking import Masking, NGramMasking
from bothways.pretraining.courses import BatchWarmup, Course, Phase
from bothways.training.options import AdamW, Lamb, StableDecay


@dataclass(frozen=True, slots=True)
class MaskedLanguageModelling:
    """Masked language modelling, alone or with a relation between two segments.

    A `decoder` adds absolute positions just below the head (DeBERTa).
    """

    masking: Masking = field(default_factory=Masking)
    relation: Literal["next_sentence", "sentence_order"] | None = None
    decoder: bool = False


@dataclass(frozen=True, slots=True)
class ReplacedTokenDetection:
    """Replaced token detection: a generator fills masks, and the encoder detects which tokens were replaced.

    `generator` has the generator's width and depth as fractions of the encoder's; `weight` is the weight of the
    encoder's loss, and the generator's loss has weight 1.
    """

    masking: Masking = field(default_factory=lambda: Masking(masked=0.85, random=0.0))
    embeddings: Literal["shared", "disentangled"] = "shared"
    generator: tuple[float, float] = (0.25, 1.0)
    weight: float = 50.0


@dataclass(frozen=True, slots=True)
class PermutationLanguageModelling:
    """Permutation language modelling with two streams on pairs of segments; one in `partial` tokens is a target.

    `memory` is the maximum number of tokens, already read from its document, that a sequence attends to. With a memory,
    half of a batch reads documents forward and half backward; with 0, sequences come in random order.
    """

    partial: int = 6
    memory: int = 384


@dataclass(frozen=True, slots=True)
class DistilledMaskedLM:
    """Masked language modelling, with a teacher's predictions and hidden states as further targets.

    `weights` are those of the teacher's predictions, masked language modelling, and the cosine of last hidden states.
    """

    masking: Masking = field(default_factory=Masking)
    weights: tuple[float, float, float] = (5.0, 2.0, 1.0)
    temperature: float = 2.0


PretrainingTask: TypeAlias = (
    MaskedLanguageModelling | ReplacedTokenDetection | PermutationLanguageModelling | DistilledMaskedLM
)


@dataclass(frozen=True, slots=True)
class ShapeKeys:
    """Names of a family's size settings in ``config.json``; `embedding` is None without a separate embedding width."""

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    embedding: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of an encoder; `embedding` is used only in families with a separate embedding width."""

    hidden: int
    layers: int
    heads: int
    inner: int
    embedding: int

    def settings(self, keys: ShapeKeys) -> dict[str, object]:
        """Return the size as entries of ``config.json``."""
        named = {keys.hidden: self.hidden, keys.layers: self.layers, keys.heads: self.heads, keys.inner: self.inner}
        return {**named, **({} if keys.embedding is None else {keys.embedding: self.embedding})}


@dataclass(frozen=True, slots=True)
class Corpus:
    """The corpus of a published pre-training; ``gigabytes`` of plain text is None if only tokens were published."""

    name: str
    gigabytes: float | None
    tokens: float


@dataclass(frozen=True, slots=True)
class PretrainingRecipe:
    """The published pre-training of an encoder.

    `source` names the paper and the section or table of the figures, `published` a model of the catalogue with the
    encoder's size, and `keys` the family's size settings; `remarks` are differences from the published training.
    """

    name: RecipeName
    title: str
    source: str
    family: str
    published: str
    task: PretrainingTask
    course: Course
    tokenizer: TokenizerKind
    corpus: Corpus
    keys: ShapeKeys = field(default_factory=ShapeKeys)
    remarks: tuple[str, ...] = ()


# Estimates: 1.3 tokens per word, for English and these vocabularies, and 6 bytes per word.
_BOOKS_AND_WIKIPEDIA = Corpus("BooksCorpus and English Wikipedia, 3.3 billion words", 16, 4.3e9)
_ROBERTA_TEXTS = Corpus("BooksCorpus, Wikipedia, CC-News, OpenWebText and Stories", 160, 3.5e10)

RECIPES: Mapping[RecipeName, PretrainingRecipe] = {
    each.name: each
    for each in (
        PretrainingRecipe(
            name="bert",
            title="BERT base",
            source="Devlin et al. 2018, arXiv:1810.04805, section 3.1 and appendix A.2",
            family="bert",
            published="google-bert/bert-base-uncased",
            task=MaskedLanguageModelling(Masking(dynamic=False), relation="next_sentence"),
            course=Course((Phase(900_000, 256, 128), Phase(100_000, 256, 512)), 1e-4, 0.01),
            tokenizer="wordpiece",
            corpus=_BOOKS_AND_WIKIPEDIA,
            remarks=("Masks are static; the published data held each text ten times, with different masks.",),
        ),
        PretrainingRecipe(
            name="roberta",
            title="RoBERTa base",
            source="Liu et al. 2019, arXiv:1907.11692, section 5 and table 9",
            family="roberta",
            published="FacebookAI/roberta-base",
            task=MaskedLanguageModelling(),
            course=Course((Phase(500_000, 8000, 512),), 6e-4, 0.048, AdamW((0.9, 0.98), 1e-6), max_gradient_norm=None),
            tokenizer="bpe",
            corpus=_ROBERTA_TEXTS,
        ),
        PretrainingRecipe(
            name="albert",
            title="ALBERT base",
            source="Lan et al. 2019, arXiv:1909.11942, section 4.1; warm-up as in google-research/albert",
            family="albert",
            published="albert/albert-base-v2",
            task=MaskedLanguageModelling(Masking(unit=NGramMasking()), relation="sentence_order"),
            course=Course((Phase(125_000, 4096, 512),), 1.76e-3, 0.025, Lamb(eps=1e-6)),
            tokenizer="unigram",
            corpus=_BOOKS_AND_WIKIPEDIA,
            keys=ShapeKeys(embedding="embedding_size"),
        ),
        PretrainingRecipe(
            name="electra",
            title="ELECTRA small",
            source="Clark et al. 2020, arXiv:2003.10555, table 6",
            family="electra",
            published="google/electra-small-discriminator",
            task=ReplacedTokenDetection(),
            course=Course((Phase(1_000_000, 128, 128),), 5e-4, 0.01),
            tokenizer="wordpiece",
            corpus=_BOOKS_AND_WIKIPEDIA,
            keys=ShapeKeys(embedding="embedding_size"),
        ),
        PretrainingRecipe(
            name="electra-base",
            title="ELECTRA base",
            source="Clark et al. 2020, arXiv:2003.10555, table 6",
            family="electra",
            published="google/electra-base-discriminator",
            task=ReplacedTokenDetection(generator=(1 / 3, 1.0)),
            course=Course((Phase(766_000, 256, 512),), 2e-4, 0.0131),
            tokenizer="wordpiece",
            corpus=_BOOKS_AND_WIKIPEDIA,
            keys=ShapeKeys(embedding="embedding_size"),
        ),
        PretrainingRecipe(
            name="deberta",
            title="DeBERTa base",
            source="He et al. 2020, arXiv:2006.03654, appendix A.3, table 8",
            family="deberta",
            published="microsoft/deberta-base",
            task=MaskedLanguageModelling(decoder=True),
            course=Course((Phase(1_000_000, 2048, 512),), 2e-4, 0.01),
            tokenizer="bpe",
            corpus=Corpus("Wikipedia, BooksCorpus, OpenWebText and Stories", 78, 1.7e10),
        ),
        PretrainingRecipe(
            name="deberta-v3",
            title="DeBERTa v3 base",
            source="He et al. 2021, arXiv:2111.09543, section 3 and appendix",
            family="deberta-v2",
            published="microsoft/deberta-v3-base",
            task=ReplacedTokenDetection(
                Masking(masked=1.0, random=0.0), embeddings="disentangled", generator=(1.0, 0.5)
            ),
            course=Course((Phase(500_000, 8192, 512),), 6e-4, 0.02, AdamW((0.9, 0.98), 1e-6)),
            tokenizer="unigram",
            corpus=_ROBERTA_TEXTS,
        ),
        PretrainingRecipe(
            name="xlnet",
            title="XLNet large",
            source=(
                "Yang et al. 2019, arXiv:1906.08237, appendix A.4.1; memories, pairs of segments and both directions: "
                "sections 2.4, 2.5 and 3.1, zihangdai/xlnet (mem_len 384, bi_data)"
            ),
            family="xlnet",
            published="xlnet/xlnet-large-cased",
            task=PermutationLanguageModelling(),
            course=Course((Phase(500_000, 8192, 512),), 4e-4, 0.08),
            tokenizer="unigram",
            corpus=Corpus("BooksCorpus, Wikipedia, Giga5, ClueWeb 2012-B and Common Crawl", 126, 3.289e10),
            keys=ShapeKeys("d_model", "n_layer", "n_head", "d_inner"),
            remarks=(
                "Each update advances by a whole sequence; in the published code by half of one (reuse_len 256), so "
                "that every token is read twice.",
            ),
        ),
        PretrainingRecipe(
            name="distilbert",
            title="DistilBERT",
            source="Sanh et al. 2019, arXiv:1910.01108, section 3; weights as in huggingface/transformers-research",
            family="distilbert",
            published="distilbert/distilbert-base-uncased",
            task=DistilledMaskedLM(),
            course=Course((Phase(12_300, 4000, 256),), 5e-4, 0.05),
            tokenizer="wordpiece",
            corpus=_BOOKS_AND_WIKIPEDIA,
            keys=ShapeKeys("dim", "n_layers", "n_heads", "hidden_dim"),
            remarks=(
                "The published training had 3 epochs; updates and length are estimated from the size of the corpus.",
                "Without a teacher, this is only masked language modelling: to train with one, use bothways distill.",
            ),
        ),
        PretrainingRecipe(
            name="modernbert",
            title="ModernBERT base",
            source="Warner et al. 2024, arXiv:2412.13663, section 3 and table 3",
            family="modernbert",
            published="answerdotai/ModernBERT-base",
            task=MaskedLanguageModelling(Masking(fraction=0.3)),
            course=Course(
                (
                    # 1.7 trillion tokens; the batch grows from 768 sequences during the first 50 billion.
                    Phase(368_000, 4608, 1024, BatchWarmup(768, tokens=50_000_000_000).growth(4608, 1024)),
                    *(Phase(424_000, 72, 8192), Phase(85_000, 72, 8192)),
                ),
                8e-4,
                0.001,
                AdamW((0.9, 0.98), 1e-6, weight_decay=1e-5),
                StableDecay(0.1),
            ),
            tokenizer="bpe",
            corpus=Corpus("web pages, code and scientific text, 2 trillion tokens", None, 2e12),
            remarks=(
                "AdamW with one schedule over all phases replaces StableAdamW and the lower rate for the long "
                "sequences.",
            ),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class _Scale:
    shape: Shape | None
    phase: Phase
    learning_rate: float
    generator: tuple[float, float]


_SCALES: Mapping[str, _Scale] = {
    "tiny": _Scale(Shape(128, 4, 2, 512, 128), Phase(2_000, 32, 128), 1e-3, (0.5, 1.0)),
    "small": _Scale(Shape(256, 6, 4, 1024, 128), Phase(20_000, 64, 128), 5e-4, (0.5, 1.0)),
    "base": _Scale(None, Phase(100_000, 256, 128), 2e-4, (1 / 3, 1.0)),
}


@dataclass(frozen=True, slots=True)
class ScaledRecipe:
    """A recipe at a scale; ``shape`` is None for the published size."""

    recipe: PretrainingRecipe
    scale: RecipeScale
    shape: Shape | None
    task: PretrainingTask
    course: Course

    def changed(
        self,
        *,
        updates: int | None = None,
        tokens: int | None = None,
        batch: int | None = None,
        length: int | None = None,
        warmup: BatchWarmup | None = None,
    ) -> "ScaledRecipe":
        """Return the recipe with other total ``updates`` or ``tokens``, batch size, sequence length or batch warm-up.

        The phases keep their shares of the updates; with a new ``length`` there is a single phase. A new ``batch``
        changes the learning rate, see `rate_for`.
        """
        phases, rate = self.course.phases, self.course.learning_rate
        if length is not None:
            phases = (replace(phases[0], updates=self.course.updates, length=length),)
        if batch is not None:
            phases, rate = tuple(phase.scaled(phase.updates, batch) for phase in phases), self.rate_for(batch)
        course = replace(self.course, phases=phases, learning_rate=rate)
        return replace(self, course=course.lasting(updates=updates, tokens=tokens, warmup=warmup))

    def rate_for(self, batch: int) -> float:
        """Return the peak learning rate for another batch size, scaled by the square root of the ratio.

        Adam's steps do not grow with the gradients, so linear scaling does not suit it (Malladi et al. 2022,
        arXiv:2205.10287); You et al. 2019 (arXiv:1904.00962, section 4.3) use the same rule for LAMB.
        """
        return self.course.learning_rate * math.sqrt(batch / self.course.phases[0].batch)


def find_recipe(name: str) -> PretrainingRecipe:
    """Return a recipe by its name."""
    found = next((each for known, each in RECIPES.items() if known == name), None)
    if found is None:
        raise InvalidInput(f"expected one of the recipes {', '.join(RECIPES)}, got {name!r}.")
    return found


def scaled(recipe: PretrainingRecipe, scale: RecipeScale) -> ScaledRecipe:
    """Return a recipe at a scale.

    Scales below ``"published"`` have one phase, a smaller batch, their own learning rate and 6 % warm-up; scales below
    ``"base"`` also have a smaller model.
    """
    if scale == "published":
        return ScaledRecipe(recipe, scale, None, recipe.task, recipe.course)
    if scale not in _SCALES:
        raise InvalidInput(f"expected one of the scales {', '.join(_SCALES)}, published, got {scale!r}.")
    chosen, task = _SCALES[scale], recipe.task
    if isinstance(task, ReplacedTokenDetection) and task.embeddings == "shared":
        task = replace(task, generator=chosen.generator)
    if isinstance(task, PermutationLanguageModelling):
        task = replace(task, memory=chosen.phase.length * task.memory // recipe.course.phases[-1].length)
    whole = replace(recipe.course.phases[0], updates=recipe.course.updates)
    phase = replace(whole.scaled(chosen.phase.updates, chosen.phase.batch), length=chosen.phase.length)
    course = replace(
        recipe.course,
        phases=(phase,),
        learning_rate=chosen.learning_rate,
        warmup=0.06,
        optimizer=AdamW(**asdict(recipe.course.optimizer)),
    )
    return ScaledRecipe(recipe, scale, chosen.shape, task, course)
