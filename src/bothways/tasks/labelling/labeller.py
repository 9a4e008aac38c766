"""A trained head, and everything that was learnt about its answers: how they are merged, calibrated and trusted.

Shapes: N texts, W windows of one text, C outputs, K numbers that the model gives for a window: C, and its features.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from bothways.checkpoints.save import head_tensors
from bothways.data import Source
from bothways.encoder import ScoreHead
from bothways.errors import NotFitted
from bothways.evaluation import Evidence, TextsRead
from bothways.families import HeadName
from bothways.inference import TextRows
from bothways.tasks.columns import PairColumns, TextColumns
from bothways.tasks.fitting import FitPlan
from bothways.tasks.labelling.judging import (
    MOST_TRAINING,
    FeatureModel,
    forward_of,
    layers_wanted,
    learn_trust,
)
from bothways.tasks.labelling.training import LabelledData
from bothways.tasks.labelling.trust import Trust, write_trust
from bothways.tasks.labelling.trusted import Trusted
from bothways.tasks.labelling.window_attention import AttentiveModel, WindowAttention, fit_attention
from bothways.tasks.merging import Merge, merge_windows
from bothways.tasks.objective import HeadModel, LabelledWindows, Scoring, predict_logits
from bothways.tasks.opening import OpenedModel
from bothways.tasks.predictions import Prediction, Reading, texts_read
from bothways.tasks.targets import Logits, SingleLabel, Target, Truth, labelled_texts
from bothways.text.texts import Text

HEAD: HeadName = "sequence"


@dataclass(slots=True)
class Labeller:
    """A head above an encoder, and how its numbers become answers.

    Attributes:
        opened: The encoder, and how it reads texts.
        module: Encoder and head.
        target: What is predicted.
        merge: How the answers of a long text's windows become one.
        trust: What was learnt on held-out rows: calibration, coverage, and the border of the domain.
        attention: How much windows count, where that was learnt.
    """

    opened: OpenedModel
    module: HeadModel
    target: Target
    merge: Merge
    trust: Trust = field(default_factory=Trust)
    attention: WindowAttention | None = None

    @classmethod
    def of(cls, opened: OpenedModel, target: Target, head: ScoreHead, merge: Merge) -> "Labeller":
        """A head that nothing is known of yet."""
        model = opened.model
        head = head.to(model.device, model.encoder.embedding.tokens.weight.dtype)
        return cls(opened, HeadModel(model.encoder, head).eval(), target, merge)

    @property
    def name(self) -> str:
        """The model's."""
        return self.opened.model.name

    @property
    def trusted(self) -> Trusted:
        """How its numbers become answers."""
        return Trusted(self.name, self.target, self.trust)

    def reader(self) -> Scoring:
        """What gives the numbers that `merged` makes logits of.

        Raises:
            NotFitted: Windows are to be merged by attention, and none was learnt.
        """
        return self._attending(self.module)

    def judging(self) -> Scoring:
        """What has to be run for everything that the model says of a text."""
        return self._attending(forward_of(self.module, self.trust))

    def _attending(self, module: HeadModel) -> Scoring:
        """A module, and what it has learnt of how much windows count, where that is how they are merged."""
        if self.merge != "attention":
            return module
        if self.attention is None:
            raise NotFitted(f"{self.name!r} has learnt no attention over windows: call fit, or choose another merge.")
        return AttentiveModel(module, self.attention)

    def run(
        self, module: Scoring, texts: Iterable[Text], description: str, total: int | None, show: bool | None
    ) -> Iterator[TextRows]:
        """What a module says of texts, or pairs, in order and in flat memory."""
        return self.opened.engine(module).run(texts, total=total, description=description, show_progress=show)

    def merged(self, answer: TextRows) -> Logits:
        """One text's uncalibrated logits (C), or those and its features (K)."""
        lengths_W = np.asarray(answer.lengths)
        text_W = np.zeros(len(lengths_W), dtype=np.int64)
        return merge_windows(answer.rows_WK, lengths_W, text_W, self.merge).reshape(-1)

    def read(self, answer: TextRows) -> tuple[Logits, Reading]:
        """What `merged` makes of what was said of a text, and how much of the text was read."""
        return self.merged(answer), Reading(len(answer.lengths), answer.dropped_tokens)

    def judge(
        self, *, calibrated: bool | None = None, coverage: float | None = None
    ) -> Callable[[TextRows], Prediction]:
        """What makes a prediction of what the model says of a text, as `Trusted.judge` does of its numbers."""
        judged = self.trusted.judge(calibrated=calibrated, coverage=coverage)
        return lambda answer: judged(*self.read(answer))

    def labelled(self, data: Source, columns: TextColumns | PairColumns) -> tuple[list[Text], Truth]:
        """The texts, or pairs, of labelled data, and their encoded labels.

        Raises:
            InvalidInput: The data are not usable, or hold a label that was not there in training.
        """
        return labelled_texts(data, columns.inputs, columns.label, self.target)

    def rows(
        self, module: Scoring, data: Source, columns: TextColumns | PairColumns, show: bool | None
    ) -> tuple[Logits, Truth, TextsRead]:
        """What a module says of labelled rows (N, K), the encoded labels, and how the texts were read."""
        texts, truth = self.labelled(data, columns)
        rows_NK, read = self._said(module, texts, "evaluating", show)
        return rows_NK, truth, read

    def evidence_of(self, texts: list[Text], show: bool | None) -> tuple[Evidence, TextsRead]:
        """What the detector reads of texts, or pairs, and how they were read."""
        rows_NK, read = self._said(self.judging(), texts, "reading others", show)
        return self.trusted.evidence(rows_NK), read

    def _said(
        self, module: Scoring, texts: list[Text], description: str, show: bool | None
    ) -> tuple[Logits, TextsRead]:
        """What a module says of texts, or pairs (N, K), and how they were read."""
        said = list(map(self.read, self.run(module, texts, description, len(texts), show)))
        return np.stack([row_K for row_K, _ in said]), texts_read([reading for _, reading in said])

    def learn(self, data: LabelledData, plan: FitPlan) -> Logits:
        """Learn how windows count, and from the held-out rows how far to trust the head; their logits (N, C)."""
        target, tokens, settings, module = self.target, self.opened.batch_tokens, plan.settings, self.module
        if self.merge == "attention":
            self.attention = fit_attention(module, target, data.training, data.held, tokens=tokens, seed=plan.seed)
        layers = (
            layers_wanted(settings.detector, module.encoder.config.layers) if isinstance(target, SingleLabel) else 0
        )
        if layers:
            module = FeatureModel(module.encoder, module.head, layers).eval()
        reader = self._attending(module)

        def rows_of(part: LabelledWindows) -> tuple[Logits, Truth]:
            return predict_logits(reader, part.store, tokens, self.merge), part.truth

        held_out_NK, truth = rows_of(data.held)
        some = data.training.some(MOST_TRAINING, plan.seed)
        self.trust = learn_trust(target, held_out_NK, truth, settings, plan.seed, lambda: rows_of(some), layers)
        return held_out_NK[:, : target.outputs]

    def stored(self, folder: Path) -> dict[str, object]:
        """Write the arrays that belong to the head, and return what ``bothways.json`` is to say of it."""
        return {"target": self.target.kind, **write_trust(folder, self.trust)}

    def tensors(self) -> dict[str, Tensor]:
        """The head's weights under the family's names."""
        model = self.opened.model
        return head_tensors(model.family.head(HEAD, model.settings).rows, model.config, self.module.head)
