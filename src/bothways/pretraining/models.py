"""New models: random encoders with heads for any tokenizer, and students, copies of a teacher with fewer layers."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from bothways.checkpoints import fingerprint
from bothways.checkpoints.calls import Absent
from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.encoder import Encoder, EncoderConfig
from bothways.encoder.config import LocalGlobalAttention, SharedGroups
from bothways.encoder.heads import Head, MaskedLMHead, new_head
from bothways.errors import InvalidInput
from bothways.families import FAMILIES, Family, HeadName
from bothways.families.catalogue import find_published
from bothways.pretraining.recipes import ScaledRecipe, Shape, ShapeKeys
from bothways.pretraining.runs import parameters
from bothways.text import TextTokenizer
from bothways.training.state import seeded

# Number of classes of the relation between two segments.
RELATION_CLASSES = 2

_NEW = Absent("the model is new: it has no trained pooler.")


def published_settings(scaled: ScaledRecipe) -> tuple[Family, dict[str, object]]:
    """Return the family and the ``config.json`` of a recipe's model, with the published vocabulary size."""
    recipe = scaled.recipe
    found = find_published(FAMILIES.values(), recipe.published)
    if found is None:
        raise InvalidInput(f"the model {recipe.published} of the recipe {recipe.name} is not in the catalogue.")
    family, published = found
    shape = {} if scaled.shape is None else scaled.shape.settings(recipe.keys)
    return family, {"model_type": family.model_type, **published.settings, **shape}


def check_lengths(scaled: ScaledRecipe) -> None:
    """Raise InvalidInput if the sequences of a recipe are longer than its model's limit."""
    family, settings = published_settings(scaled)
    limit, longest = family.config(settings).max_length, max(phase.length for phase in scaled.course.phases)
    if limit is not None and longest > limit:
        raise InvalidInput(
            f"expected a length of at most {limit:,} tokens, the limit of the recipe's model, got {longest:,}: choose "
            "a shorter length."
        )


def settings_over(scaled: ScaledRecipe, tokenizer: TextTokenizer) -> dict[str, object]:
    """Return the ``config.json`` of a recipe's model, with the vocabulary size and ids of a tokenizer."""
    _, settings = published_settings(scaled)
    ids = {"pad_token_id": tokenizer.pad_id, "cls_token_id": tokenizer.cls_id, "sep_token_id": tokenizer.sep_id}
    ends = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return {**settings, "vocab_size": len(tokenizer.vocabulary()), **ids, **ends}


def narrowed(settings: Mapping[str, object], keys: ShapeKeys, shares: tuple[float, float]) -> dict[str, object]:
    """Return the settings of a generator; ``shares`` are its width and depth as fractions of the discriminator's.

    The widths of an attention head and of the embedding, which may be shared, stay the same.
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
    """Return an encoder with heads, initialised randomly by the seed, on the CPU and in training mode."""
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
    """Return a model's head for logits over the vocabulary, or raise InvalidInput."""
    head = model.heads.get(name)
    if not isinstance(head, MaskedLMHead):
        raise InvalidInput(f"{model.name} has no {name} head: choose a model that has one.")
    return head


@dataclass(frozen=True, slots=True)
class Student:
    """A model that learns from a teacher.

    `copied` has, for each layer of the student, the index of the teacher's layer it was copied from; empty if none was.
    """

    model: PretrainedEncoder
    copied: tuple[int, ...] = ()

    def learns_from(self, teacher: EncoderConfig) -> tuple[int, ...]:
        """Return, for each layer, the teacher's layer whose output it learns: the copied one, else evenly spaced ones.

        The last layer always learns the teacher's last layer, which heads and poolings read.
        """
        layers = self.model.config.layers
        if self.copied:
            return (*self.copied[:-1], teacher.layers - 1)
        ends = ((number + 1) * teacher.layers // layers - 1 for number in range(layers))
        return tuple(max(0, end) for end in ends)

    def origin(self, teacher: PretrainedEncoder) -> dict[str, str]:
        """Return the identity of teacher and student, which must be the same in a resumed run."""
        weights = teacher.name if teacher.trainings else fingerprint(teacher.folder)
        return {"teacher": weights, "student": ", ".join(map(str, self.copied)) or self.model.name}

    def facts(self, teacher: PretrainedEncoder) -> dict[str, object]:
        """Return facts about the student and its teacher as JSON values."""
        ours, theirs = parameters(self.model), parameters(teacher)
        return {
            "teacher": teacher.name,
            "layers": f"{self.model.config.layers} of {teacher.config.layers}",
            "parameters": ours,
            "size": f"{ours / theirs:.0%} of the teacher's",
        }


def evenly_spread(teacher: int, layers: int) -> tuple[int, ...]:
    """Return indices of evenly spaced layers, including the first and the last; a single one is the first.

    These are the layers of the published DistilBERT. The first layer reads the embedding and is special in some
    families: it has no norm before it (ModernBERT), or a convolution beside it (DeBERTa v2). Heads and poolings read
    the last layer.

    >>> evenly_spread(12, 6)
    (0, 2, 4, 7, 9, 11)
    >>> evenly_spread(6, 3)
    (0, 3, 5)
    """
    if not 1 <= layers <= teacher:
        raise InvalidInput(f"`layers` must be from 1 to {teacher}, the number of the teacher's layers, got {layers}.")
    steps = max(1, layers - 1)
    return tuple((2 * number * (teacher - 1) + steps) // (2 * steps) for number in range(layers))


def shortened(teacher: PretrainedEncoder, layers: int) -> Student:
    """Copy a teacher with fewer layers, but the same embeddings, heads, tokenizer and other settings.

    In a family with global and local attention, a layer is copied from the nearest layer of its kind. If layers share
    weights, the student applies the shared weights fewer times.
    """
    teacher.check_full("distill")
    chosen, family = evenly_spread(teacher.config.layers, layers), teacher.family
    settings = {**teacher.settings, family.layers_key: layers}
    if isinstance(kinds := settings.get("layer_types"), list):
        settings["layer_types"] = kinds[:layers]
    config = family.config(settings)
    chosen = _of_one_kind(chosen, teacher.config, config)
    encoder = _copied(teacher.encoder, config, chosen)
    model = replace(
        teacher,
        encoder=encoder.train(teacher.encoder.training),
        heads=deepcopy(dict(teacher.heads)),
        pooler=deepcopy(teacher.pooler),
        settings=settings,
        name=f"{layers} layers of {teacher.name}",
        trainings=teacher.trainings + 1,
    )
    return Student(model, chosen)


def _of_one_kind(preferred: Sequence[int], teacher: EncoderConfig, student: EncoderConfig) -> tuple[int, ...]:
    """Replace layers of the wrong kind, global or local, by the nearest free ones of the right kind."""
    if not (isinstance(teacher.pattern, LocalGlobalAttention) and isinstance(student.pattern, LocalGlobalAttention)):
        return tuple(preferred)
    chosen: list[int] = []
    for index, sees_whole in zip(preferred, student.pattern.seen_whole, strict=True):
        alike = [layer for layer, whole in enumerate(teacher.pattern.seen_whole) if whole == sees_whole]
        if not alike:
            raise InvalidInput("expected a teacher with global and local attention layers, as in the student.")
        chosen.append(min(alike, key=lambda layer: (layer in chosen, abs(layer - index))))
    return tuple(chosen)


def _copied(teacher: Encoder, config: EncoderConfig, chosen: Sequence[int]) -> Encoder:
    """Copy an encoder with only the chosen layers, on the same device."""
    with seeded(0):  # the random weights are overwritten
        student = Encoder(config)
    weights = teacher.state_dict()
    if not isinstance(config.sharing, SharedGroups):
        weights = _renumbered(weights, chosen)
    tokens = teacher.embedding.tokens.weight
    student.load_state_dict(weights)
    return student.to(tokens.device, tokens.dtype)


def _renumbered(weights: Mapping[str, Tensor], chosen: Sequence[int]) -> dict[str, Tensor]:
    kept = {name: value for name, value in weights.items() if not name.startswith(_LAYERS)}
    for place, layer in enumerate(chosen):
        prefix = f"{_LAYERS}{layer}."
        found = {name: value for name, value in weights.items() if name.startswith(prefix)}
        kept |= {f"{_LAYERS}{place}.{name.removeprefix(prefix)}": value for name, value in found.items()}
    return kept


_LAYERS = "layers."
