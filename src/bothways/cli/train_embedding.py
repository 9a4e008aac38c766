"""``bothways train embedding``: fine-tune a sentence embedder."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bothways.cli.opening import AS_IT_CAN, ReadingOptions, open_embedder
from bothways.cli.options import (
    HERE,
    File,
    Flag,
    Format,
    Loss,
    ModelOptions,
    PositiveFloat,
    PositiveInt,
    bad_usage,
    usage_error,
)
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.training import ONCE, USUAL, RunOptions, TrainingOptions, check_inputs, train_and_save
from bothways.cli.vector_options import AS_THE_MODEL_SAYS, VectorOptions

if TYPE_CHECKING:
    from bothways.tasks.embedding.data import EmbeddingColumns
    from bothways.tasks.embedding.losses import EmbeddingLoss, PlainLoss
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.task import Task
    from bothways.training.record import TrainingRecord

EXAMPLE = """\
Rows of the data, and the options that name their columns:
  {"text_a": "A man sleeps.", "text_b": "Someone is asleep.", "score": 4.6}
      scored pairs: --text-a --text-b --score (the default)
  {"anchor": "How do I pay?", "positive": "Cards are accepted."}
      pairs that belong together: --anchor --positive
  {"anchor": "How do I pay?", "positive": "By card.", "negative": "Pay rises."}
      triplets: --anchor --positive --negative
  {"text": "Where is my card?", "label": "card_arrival"}
      texts that belong to those of their label: --text --label
  {"text": "Where is my card?"}
      texts, for a larger embedder to teach: --teacher MODEL --text

Examples:
  bothways train embedding --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train pairs.jsonl.gz --text-a text_a --text-b text_b --score score \\
    --output runs/emb
  bothways train embedding --model my-encoder --train questions.jsonl.gz \\
    --anchor question --positive answer --batch-size 4096 \\
    --matryoshka 384 128 64 --output runs/emb

Ctrl-C ends the training after the update at hand: the epoch kept so far is
saved, and the same command with --resume continues."""


@Parameter(name="*", group="Columns (of one kind of data)")
@dataclass(frozen=True, slots=True)
class EmbeddingColumnOptions:
    """Where the parts of a row stand, which also says what the rows are."""

    text_a: str | None = None
    """Of the first texts of scored pairs; 'text_a' by default."""
    text_b: str | None = None
    """Of the second texts; 'text_b' by default."""
    score: str | None = None
    """Of how alike they are, in any range: only the order counts; 'score' by default."""
    anchor: str | None = None
    """Of texts that others belong to; 'anchor' by default where there is a --positive."""
    positive: str | None = None
    """Of the texts that belong to them."""
    negative: tuple[str, ...] | None = None
    """Of texts that look so and do not; give it again for several."""
    text: tuple[str, ...] | None = None
    """Of labelled texts (several are joined by a space), or of texts for a teacher (each is a text of its own)."""
    label: str | None = None
    """Of their labels."""


@Parameter(name="*", group="Loss")
@dataclass(frozen=True, slots=True)
class LossOptions:
    """What makes vectors good."""

    loss: Loss | None = None
    """By default cosent for scores, and ranking (in-batch negatives) for everything else."""
    scale: PositiveFloat | None = None
    """Inverse temperature of ranking, cosent and a teacher; 20 by default."""
    margin: PositiveFloat | None = None
    """Of triplet, in Euclidean distance; 1 by default."""
    symmetric: Flag = False
    """Ranking also finds the anchor of each positive."""
    matryoshka: Annotated[tuple[PositiveInt, ...] | None, Parameter(consume_multiple=True)] = None
    """Dimensions that vectors may later be cut to: --matryoshka 384 128 64."""
    teacher: str | None = None
    """A larger embedder, a folder or a name, to learn likeness from."""
    pairs_per_text: PositiveInt = 1
    """With how many others of its label each labelled text is put together in an epoch."""


BY_NAME = EmbeddingColumnOptions()
AS_SUITS = LossOptions()


def embedding(
    *,
    model: str,
    train: File,
    output: Path,
    validation: File | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    columns: EmbeddingColumnOptions = BY_NAME,
    loss: LossOptions = AS_SUITS,
    run: RunOptions = ONCE,
    training: TrainingOptions = USUAL,
    vectors: VectorOptions = AS_THE_MODEL_SAYS,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> int:
    """Fine-tune a sentence embedder on pairs, triplets, scored pairs, labelled texts, or a teacher's likeness.

    The loss sees the whole batch; memory grows with its vectors only, so --batch-size may be in the thousands.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows; when left out, about a tenth of the training rows (at most some 2,000), drawn with
            the seed, those with the same first text together.
        format: Of both files, where their names do not say it.
        columns: Where the parts of a row stand, which says what the rows are.
        loss: What makes vectors good.
        run: What becomes of the run.
        training: How long and how fast.
        vectors: How texts become vectors.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    check_inputs(train, validation)

    def fit(options: "FitOptions") -> "tuple[Task, TrainingRecord]":
        from bothways.tasks.embedding.data import kind_of

        with bad_usage():
            kind = kind_of(**asdict(columns), teacher=loss.teacher is not None)
        embedder = open_embedder(model, vectors, reading, opening)
        with bad_usage():
            chosen = _loss_of(loss, kind, embedder.dimensions, opening)
        record = embedder.fit(
            labelled_source(train, format),
            validation=optional_source(validation, format),
            columns=kind,
            loss=chosen,
            pairs_per_text=loss.pairs_per_text,
            **options,
        )
        return embedder, record

    return train_and_save(output, training, run, fit)


def _loss_of(options: LossOptions, kind: "EmbeddingColumns", width: int, opening: ModelOptions) -> "EmbeddingLoss":
    """The loss that the options describe, checked against the data and the length of a vector.

    Raises:
        CycloptsError: A setting is one that the loss does not have.
        InvalidInput: The loss cannot learn from such data, or a setting is out of range.
    """
    from bothways.tasks.embedding.losses import Matryoshka, check_loss

    plain = _plain_loss(options, kind, opening)
    loss = plain if options.matryoshka is None else Matryoshka(plain, options.matryoshka)
    check_loss(loss, kind, width)
    return loss


def _plain_loss(options: LossOptions, kind: "EmbeddingColumns", opening: ModelOptions) -> "PlainLoss":
    from bothways.tasks.embedding.losses import CoSENT, Distillation, MultipleNegativesRanking, Triplet, usual_loss

    if options.teacher is not None and options.loss is not None:
        raise usage_error("--teacher is a loss of its own, so it does not go with --loss.")
    name = "distillation" if options.teacher is not None else options.loss or usual_loss(kind).name
    settings = {"scale": options.scale, "margin": options.margin, "symmetric": options.symmetric or None}
    given = {each: value for each, value in settings.items() if value is not None}
    allowed = {"ranking": ("scale", "symmetric"), "triplet": ("margin",)}.get(name, ("scale",))
    for each in given:
        if each not in allowed:
            raise usage_error(f"--{each} is no setting of the {name} loss, which has: --{', --'.join(allowed)}.")
    scale = 20.0 if options.scale is None else options.scale
    match name:
        case "ranking":
            return MultipleNegativesRanking(scale, symmetric=options.symmetric)
        case "cosent":
            return CoSENT(scale)
        case "triplet":
            return Triplet() if options.margin is None else Triplet(options.margin)
        case _:
            return Distillation(open_embedder(options.teacher or "", AS_THE_MODEL_SAYS, AS_IT_CAN, opening), scale)
