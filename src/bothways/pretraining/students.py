"""Students: copies of a teacher with fewer layers."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from torch import Tensor

from bothways.checkpoints import fingerprint
from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.encoder import Encoder, EncoderConfig
from bothways.encoder.config import LocalGlobalAttention, SharedGroups
from bothways.errors import InvalidInput
from bothways.pretraining.runs import parameters
from bothways.training.seeding import seeded


@dataclass(frozen=True, slots=True)
class Student:
    """A model that learns from a teacher.

    `copied` is the teacher's layer, from 0, that each of its layers was copied from; empty for other students.
    """

    model: PretrainedEncoder
    copied: tuple[int, ...] = ()

    def learns_from(self, teacher: EncoderConfig) -> tuple[int, ...]:
        """Return the teacher's layer whose output each layer learns: its original, or an evenly chosen one.

        The last layer always learns the last one, which heads and poolings read.
        """
        layers = self.model.config.layers
        if self.copied:
            return (*self.copied[:-1], teacher.layers - 1)
        ends = ((number + 1) * teacher.layers // layers - 1 for number in range(layers))
        return tuple(max(0, end) for end in ends)

    def origin(self, teacher: PretrainedEncoder) -> dict[str, str]:
        """Return the identity of teacher and student, which a resumed run must share."""
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
    """Choose layers at equal distances, the first and the last among them; a single one is the first.

    These are the layers of the published DistilBERT. The first one reads the embedding and is special in some families:
    it has no norm before it (ModernBERT), or a convolution beside it (DeBERTa v2). Heads and poolings read the last
    one.

    >>> evenly_spread(12, 6)
    (0, 2, 4, 7, 9, 11)
    >>> evenly_spread(6, 3)
    (0, 3, 5)

    Raises:
        InvalidInput: The teacher has fewer layers.
    """
    if not 1 <= layers <= teacher:
        raise InvalidInput(f"`layers` must be from 1 to {teacher}, the layers of the teacher, got {layers}.")
    steps = max(1, layers - 1)
    return tuple((2 * number * (teacher - 1) + steps) // (2 * steps) for number in range(layers))


def shortened(teacher: PretrainedEncoder, layers: int) -> Student:
    """Copy a model with fewer layers, and the teacher's embeddings, heads, tokenizer and settings.

    In a family with global and local layers, a layer is copied from the nearest one of its kind. Layers that share
    weights become fewer steps through the same weights.

    Raises:
        InvalidInput: The teacher has fewer layers, or more groups of shared weights.
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


def _of_one_kind(wanted: Sequence[int], teacher: EncoderConfig, student: EncoderConfig) -> tuple[int, ...]:
    """Replace layers of the wrong kind, global or local, by the nearest free ones of the right kind."""
    if not (isinstance(teacher.pattern, LocalGlobalAttention) and isinstance(student.pattern, LocalGlobalAttention)):
        return tuple(wanted)
    chosen: list[int] = []
    for place, sees_whole in zip(wanted, student.pattern.seen_whole, strict=True):
        alike = [layer for layer, whole in enumerate(teacher.pattern.seen_whole) if whole == sees_whole]
        if not alike:
            raise InvalidInput("expected a teacher with a global and a local layer, as the student has.")
        chosen.append(min(alike, key=lambda layer: (layer in chosen, abs(layer - place))))
    return tuple(chosen)


def _copied(teacher: Encoder, config: EncoderConfig, chosen: Sequence[int]) -> Encoder:
    """Copy an encoder with the chosen layers alone, on its device."""
    with seeded(0):  # the drawn weights are overwritten
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
