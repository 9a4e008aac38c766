"""Pre-training by a recipe, from a corpus to an encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import torch

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.data.shards import TokenCorpus
from bothways.devices import pick_device
from bothways.errors import NotFitted
from bothways.pretraining.assembly import assemble
from bothways.pretraining.courses import BatchWarmup
from bothways.pretraining.models import check_lengths
from bothways.pretraining.recipes import ScaledRecipe
from bothways.pretraining.runs import card_of, check_no_epochs, course_options, parameters
from bothways.storage import new_folder
from bothways.text import TextTokenizer
from bothways.training.options import TrainingArguments
from bothways.training.record import TrainingRecord

GENERATOR = "generator"
"""Folder of a generator within that of its encoder."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """Result of a run: the trained encoder with its heads, the generator of replaced token detection, and the card."""

    model: PretrainedEncoder
    generator: PretrainedEncoder | None
    card: Mapping[str, object]


class Pretrainer:
    """Pre-trains an encoder by a recipe, over any tokenizer.

    >>> from bothways.pretraining.recipes import find_recipe, scaled
    >>> scaled(find_recipe("electra"), "tiny").course.updates
    2000

    Args:
        recipe: The recipe, at a scale.
        tokenizer: The tokenizer; it gets the template of the recipe's family.
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
        """Draw a model and train it; options override the recipe.

        Args:
            corpus: Training text. A part of its documents is held out for validation.
            batch_warmup: Growth of the batch at the beginning, instead of the recipe's.
            options: Fields of `TrainingOptions`; a batch size other than the recipe's also changes its rate. The length
                is a number of updates or tokens, not of epochs.

        Raises:
            InvalidInput: The corpus is empty, of another tokenizer or has too few documents for the recipe, or an
                option is invalid.
            UnsupportedConfig: A setting of the recipe is not supported.
        """
        check_no_epochs(options)
        recipe = self.recipe.changed(updates=options.get("updates"), batch=options.get("batch_size"))
        training = course_options(recipe.course, options)
        run, kept = assemble(recipe, self.tokenizer, training.seed, self.device, batch_warmup)
        named = {"recipe": recipe.recipe.name, "scale": recipe.scale}
        record = run.train(corpus, training, self.device, named)
        card = {**named, "source": recipe.recipe.source, **card_of(corpus, record)}
        self._pretrained = Pretrained(*kept(), card)
        return record

    @property
    def fitted(self) -> Pretrained:
        """Result of the last run.

        Raises:
            NotFitted: No model is pre-trained yet.
        """
        if self._pretrained is None:
            raise NotFitted("no model is pre-trained yet: call fit first.")
        return self._pretrained

    def facts(self) -> dict[str, object]:
        return {"recipe": self.recipe.recipe.name, "parameters": parameters(self.fitted.model)}

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write encoder, heads and tokenizer in the ecosystem's layout, and a generator in a folder within.

        Raises:
            NotFitted: No model is pre-trained yet.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing is left behind.
        """
        fitted = self.fitted
        with new_folder(folder, overwrite=overwrite) as new:
            fitted.model.write(new, {"card": dict(fitted.card)})
            if fitted.generator is not None:
                (new / GENERATOR).mkdir()
                fitted.generator.write(new / GENERATOR, {"card": dict(fitted.card)})
