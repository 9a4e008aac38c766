"""``bothways audit-data``: the rows of a training set by how likely they are poisoned."""

from bothways.choices import Format
from bothways.cli.options import HERE, File, Flag, ModelOptions
from bothways.cli.terminal import counted, note

EXAMPLE = """\
Examples:
  bothways audit-data train.jsonl.gz --output suspicious.jsonl
  bothways audit-data train.jsonl.gz --model runs/news \\
    --output suspicious.jsonl

Each row has a score from 0 to 1, above 0.5 if it shares a phrase with rows of
its label that, without the phrase, speak for another label more than other rows
do; "triggers" has the phrases. Read the first rows before you remove any."""


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
    """Find poisoned rows of a training set.

    Writes the most suspicious rows first.

    Args:
        data: Rows with texts and labels.
        model: Folder of a classifier that was trained on them; its answers and hidden states count too.
        output: Rows with score, triggers and reason; '-' is standard output.
        embedder: A sentence embedder that was not trained on the rows.
        text: Columns of the texts.
        label: Column of the labels.
        data_format: Of the data, where the name does not say it.
        json: Print JSON Lines, which is what is printed anyway.
        quiet: Show no progress.
        opened: How models are found and where they run.
    """
    from bothways.audit.backdoor.poisoned import audit_data as audited
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
        beside = f" and {counted(len(phrase.members) - 1, 'phrase')} beside it" if len(phrase.members) > 1 else ""
        note(
            f"{phrase.phrase!r}{beside}: {counted(len(phrase.rows), 'row')} of {phrase.label!r}, "
            f"{phrase.contradicted} of which clearly speak for another label without it"
        )
    note(f"{found.suspected} of {counted(len(found.rows), 'row')} are suspected")
