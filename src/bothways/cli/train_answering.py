"""``bothways train answering``: fine-tune a pretrained encoder to answer questions from a context."""

from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.opening import AS_IT_CAN, ReadingOptions, open_options
from bothways.cli.options import HERE, File, Format, ModelOptions, PositiveInt, bad_usage
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.train import RESUMING
from bothways.cli.training import ONCE, USUAL, RunOptions, TrainingOptions, check_inputs, train_and_save

if TYPE_CHECKING:
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.task import Task
    from bothways.training.record import TrainingRecord

EXAMPLE = f"""\
A row of the data; without an answer in the context, "answers" is an empty list:
  {{"id": "q1", "question": "Who won?", "context": "In 2016 the Broncos won.",
   "answers": [{{"text": "Broncos", "start": 12}}]}}
SQuAD files (.json, version 1.1 or 2.0) are read as they are.

Example:
  bothways train answering --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train train.jsonl.gz --validation validation.jsonl.gz --output runs/qa

{RESUMING}"""


def answering(
    *,
    model: str,
    train: File,
    output: Path,
    validation: File | None = None,
    question: str = "question",
    context: str = "context",
    answers: str = "answers",
    max_answer_tokens: PositiveInt | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    run: RunOptions = ONCE,
    training: TrainingOptions = USUAL,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> int:
    """Fine-tune an encoder to find answers in a context, and to say when there is none.

    It keeps a good epoch (see --epochs), and chooses on held-out questions when to give no answer and how sure to be.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Rows: .jsonl, .json such as SQuAD's (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows; the questions on a tenth of the contexts, drawn with the seed, when left out.
        question: Column of the questions.
        context: Column of the contexts, which are cut into windows where they are too long.
        answers: Column of the answers.
        max_answer_tokens: Most tokens in an answer; by default 30.
        format: Of both files, where their names do not say it.
        run: What becomes of the run.
        training: How long and how fast.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    check_inputs(train, validation)

    def fit(options: "FitOptions") -> "tuple[Task, TrainingRecord]":
        from bothways.tasks import QuestionAnswerer

        with bad_usage():
            opened = open_options(reading, opening)
            answerer = QuestionAnswerer.from_pretrained(model, max_answer_tokens=max_answer_tokens, **opened)
        record = answerer.fit(
            labelled_source(train, format),
            validation=optional_source(validation, format),
            question=question,
            context=context,
            answers=answers,
            **options,
        )
        return answerer, record

    return train_and_save(output, training, run, fit)
