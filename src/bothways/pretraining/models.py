"""New models: random encoders with heads, in the layout of a family and over any tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bothways.checkpoints.output import Absent
from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.encoder import Encoder
from bothways.encoder.heads import Head, MaskedLMHead, new_head
from bothways.errors import InvalidInput
from bothways.families import FAMILIES, Family, HeadName
from bothways.families.catalogue import find_published
from bothways.pretraining.recipes import ScaledRecipe, Shape, ShapeKeys
from bothways.text import TextTokenizer
from bothways.training.seeding import seeded

# Classes of the relation between two segments.
RELATION_CLASSES = 2

_NEW = Absent("the model is new: it has no trained pooler.")


def published_settings(scaled: ScaledRecipe) -> tuple[Family, dict[str, object]]:
    """Return the family and the ``config.json`` of a recipe's model, with its published vocabulary."""
    recipe = scaled.recipe
    found = find_published(FAMILIES.values(), recipe.published)
    if found is None:
        raise InvalidInput(f"the model {recipe.published} of the recipe {recipe.name} is not in the catalogue.")
    family, published = found
    shape = {} if scaled.shape is None else scaled.shape.settings(recipe.keys)
    return family, {"model_type": family.model_type, **published.settings, **shape}


def check_lengths(scaled: ScaledRecipe) -> None:
    """Refuse a recipe whose sequences are longer than its model's limit."""
    family, settings = published_settings(scaled)
    limit, longest = family.config(settings).max_length, max(phase.length for phase in scaled.course.phases)
    if limit is not None and longest > limit:
        raise InvalidInput(
            f"expected a length of at most {limit:,} tokens, the limit of the recipe's model, got {longest:,}: choose "
            "a shorter one."
        )


def settings_over(scaled: ScaledRecipe, tokenizer: TextTokenizer) -> dict[str, object]:
    """Return the ``config.json`` of a recipe's model over a tokenizer."""
    _, settings = published_settings(scaled)
    ids = {"pad_token_id": tokenizer.pad_id, "cls_token_id": tokenizer.cls_id, "sep_token_id": tokenizer.sep_id}
    ends = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return {**settings, "vocab_size": len(tokenizer.vocabulary()), **ids, **ends}


def narrowed(settings: Mapping[str, object], keys: ShapeKeys, shares: tuple[float, float]) -> dict[str, object]:
    """Return the settings of a generator of the same family, with shares of the width and depth.

    Its heads and its embedding, which may be shared, are as wide as the discriminator's.
    """
    hidden, layers, heads, inner = (
        int(str(settings[key])) for key in (keys.hidden, keys.layers, keys.heads, keys.inner)
    )
    width, depth = shares
    head = hidden // heads
    count = max(1, round(heads * width))
    embedding = hidden if keys.embedding is None else int(str(settings[keys.embedding]))
    shape = Shape(count * head, max(1, round(layers * depth)), count, max(1, round(inner * width)), embedding)
    return {**settings, **shape.settings(keys)}


def new_model(
    family: Family, settings: Mapping[str, object], tokenizer: TextTokenizer, heads: Sequence[HeadName], *, seed: int
) -> PretrainedEncoder:
    """Return a random encoder with random heads, drawn by the seed, on the CPU and in training mode.

    Raises:
        InvalidInput: The family has no such head.
        UnsupportedConfig: A setting is not supported.
    """
    kinds = {name: family.head(name, settings).kind for name in heads}
    with seeded(seed):
        encoder = Encoder(family.config(settings))
        made: dict[HeadName, Head] = {
            name: new_head(encoder.config, kind, RELATION_CLASSES) for name, kind in kinds.items()
        }
    return PretrainedEncoder(
        encoder=encoder,
        pooler=_NEW,
        heads=made,
        tokenizer=tokenizer,
        family=family,
        settings=dict(settings),
        name=f"a new {family.title} model",
        folder=Path(),
        revision=None,
    )


def masked_lm_head(model: PretrainedEncoder, name: HeadName = "masked_lm") -> MaskedLMHead:
    """Return a model's head for vocabulary logits, or raise InvalidInput."""
    head = model.heads.get(name)
    if not isinstance(head, MaskedLMHead):
        raise InvalidInput(f"{model.name} has no {name} head.")
    return head
