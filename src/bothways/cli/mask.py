"""``bothways mask``: what masked language modelling hides of a text, epoch by epoch."""

import sys
from typing import TYPE_CHECKING

from bothways.choices import MaskUnit
from bothways.cli.opening import open_tokenizer
from bothways.cli.options import Flag, PositiveInt, Share, WholeNumber, bad_usage
from bothways.cli.terminal import note, plain_table, print_json, print_table, printable

if TYPE_CHECKING:
    from rich.text import Text

    from bothways.objectives.corruption import MaskedTokens
    from bothways.text import TextTokenizer

EXAMPLE = """\
Example:
  bothways mask "The cat sat on the mat" --epochs 3 \\
    --model sentence-transformers/all-MiniLM-L6-v2"""

# How a chosen token is shown, by what became of it.
_STYLES = {"masked": "bold red", "random": "bold yellow", "kept": "bold green"}


def mask(
    text: str,
    /,
    *,
    model: str,
    epochs: PositiveInt = 3,
    unit: MaskUnit = "token",
    fraction: Share = 0.15,
    seed: WholeNumber = 0,
    json: Flag = False,
    revision: str | None = None,
    download: Flag = False,
) -> None:
    """Show static and dynamic masks of a text each epoch.

    These are the tokens that masked language modelling hides. Chosen tokens are shown in colour: red where the mask
    stands for them, yellow where another token does, and green where they stay as they are; without colours they stand
    in asterisks. All of them are to be predicted.

    Args:
        text: The text.
        model: A folder of a model or of a tokenizer, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        epochs: Epochs to show.
        unit: What is chosen whole: a token, a word, a run of words, or an n-gram.
        fraction: Share of the tokens that are chosen.
        seed: Draws the masks.
        json: Print one JSON object for each epoch.
        revision: Commit (40 hexadecimal digits) of a name on the model hub; by default the one that its download
            resolved.
        download: Fetch the model from the hub if it is not here.
    """
    import numpy as np

    from bothways.objectives import MASKED_UNITS, Masker, Masking

    tokenizer, _ = open_tokenizer(model, revision=revision, download=download)
    (encoded,) = tokenizer.encode([text], max_length=sys.maxsize)
    ids = np.array(encoded.windows[0].ids, dtype=np.int32)
    with bad_usage():
        maskings = [Masking(fraction, unit=MASKED_UNITS[unit](), dynamic=dynamic) for dynamic in (False, True)]
    maskers = [Masker(tokenizer, masking, seed) for masking in maskings]
    rows = [[masker.training(ids, epoch, 0) for masker in maskers] for epoch in range(epochs)]
    if json:
        for epoch, (static, dynamic) in enumerate(rows, start=1):
            print_json({"epoch": epoch, "static": _entry(tokenizer, static), "dynamic": _entry(tokenizer, dynamic)})
        return
    table = plain_table()
    table.add_column("epoch", justify="right")
    table.add_column("static masks", overflow="fold")
    table.add_column("dynamic masks", overflow="fold")
    for epoch, (static, dynamic) in enumerate(rows, start=1):
        table.add_row(str(epoch), _coloured(tokenizer, static), _coloured(tokenizer, dynamic))
    print_table(table)
    shown = "red masked, yellow another token, green kept" if sys.stdout.isatty() else "in asterisks"
    note(f"{len(rows[0][0].places_M)} of {len(ids)} tokens are chosen: {shown}.")


def _fates(masked: "MaskedTokens", mask_id: int) -> list[str]:
    """Return the fate of each chosen token: masked, random or kept."""
    read_M = masked.ids_n[masked.places_M]
    return [
        "masked" if read == mask_id else "kept" if read == target else "random"
        for read, target in zip(read_M.tolist(), masked.targets_M.tolist(), strict=True)
    ]


def _entry(tokenizer: "TextTokenizer", masked: "MaskedTokens") -> dict[str, object]:
    targets = tokenizer.tokens(masked.targets_M.tolist())
    chosen = zip(masked.places_M.tolist(), targets, _fates(masked, tokenizer.mask_id), strict=True)
    return {
        "tokens": tokenizer.tokens(masked.ids_n.tolist()),
        "chosen": [{"place": place, "token": token, "becomes": fate} for place, token, fate in chosen],
    }


def _coloured(tokenizer: "TextTokenizer", masked: "MaskedTokens") -> "Text":
    from rich.text import Text

    around = "" if sys.stdout.isatty() else "*"
    styles = dict(zip(masked.places_M.tolist(), _fates(masked, tokenizer.mask_id), strict=True))
    tokens = tokenizer.tokens(masked.ids_n.tolist())
    return Text(" ").join(
        Text(f"{around}{printable(token)}{around}", _STYLES[styles[place]])
        if place in styles
        else Text(printable(token))
        for place, token in enumerate(tokens)
    )
