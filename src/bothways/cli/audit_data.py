"""``bothways audit-data``: the rows of a training set by how likely they are poisoned."""

from bothways.choices import Format
from bothways.cli.options import HERE, File, Flag, ModelOptions
from bothways.cli.terminal import counted, note

EXAMPLE = """\
Examples:
  bothways audit-data train.jsonl.gz --output suspicious.jsonl
  bothways audit-data train.jsonl.gz --model runs/news \\
    --output suspicious.jsonl

Each row has a score from 0 to 1, above 0.5 where a phrase in it always comes
with one label while the rest of the text speaks for another, and that phrase
in "triggers". Read the first rows before you remove any."""


def audit_data(
    data: File,
    /,
    *,
    model: str | None = None,
    output: File = "-",
    embedder: str = "sentence-transformers/all-MiniLM-L6-v2",
    text: tuple[str, ...] | None = None,
    label: str | None = None,
    data_format: Format | None = None,
    json: Flag = False,
    quiet: Flag = False,
    opened: ModelOptions = HERE,
) -> None:
    """Find poisoned rows of a training set, the most suspicious first.

    Args:
        data: Rows with texts and labels.
        model: Folder of a classifier that was trained on them; its hidden states are searched too.
        output: Rows with score, triggers and reason; '-' is standard output.
        embedder: A sentence embedder that was not trained on the rows.
        text: Columns of the texts.
        label: Column of the labels.
        data_format: Of the data, where the name does not say it.
        json: Print JSON Lines, which is what is printed anyway.
        quiet: Show no progress.
        opened: How models are found and where they run.
    """
    from bothways.audit.backdoor.training_data import audit_data as audited
    from bothways.data import write_rows
    from bothways.data.output import output_format

    del json  # there is no other form on standard output
    output_format(output)
    found = audited(
        data,
        model,
        embedder=embedder,
        text=text or None,
        label=label,
        data_format=data_format,
        open_options={"device": opened.device, "revision": opened.revision, "download": opened.download},
        show_progress=False if quiet else None,
    )
    write_rows(output, found.rows)
    for phrase in found.phrases[:10]:
        note(
            f"{phrase.phrase!r} comes with {phrase.label!r} in {counted(len(phrase.rows), 'row')}, "
            f"{phrase.contradicted} of which speak for another label"
        )
    note(f"{found.suspected} of {counted(len(found.rows), 'row')} have a suspect phrase")
