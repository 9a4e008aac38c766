"""``bothways cost``: arithmetic and memory of a model."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways.cli.options import Flag, PositiveInt, bad_usage
from bothways.cli.terminal import plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.advice import Cost

EXAMPLE = """\
Example:
  bothways cost roberta-base --batch 32 --length 256
  bothways cost roberta-base --batch 32 --activation-checkpointing"""


def cost(
    model: str,
    /,
    *,
    batch: PositiveInt = 8,
    length: PositiveInt = 128,
    activation_checkpointing: Flag = False,
    json: Flag = False,
) -> None:
    """Count a model's operations and memory without building it.

    Prints operations for each token, and memory for inference and training.

    Args:
        model: A model of the catalogue, or a folder with a config.json.
        batch: Texts in a batch.
        length: Tokens of each.
        activation_checkpointing: Train with the option of this name.
        json: Print one JSON object.
    """
    from bothways.advice import cost as cost_of
    from bothways.advice import find_config

    name, config = find_config(model)
    with bad_usage():
        found = cost_of(config, batch=batch, length=length, activation_checkpointing=activation_checkpointing)
    if json:
        print_json({"name": name, **asdict(found)})
    else:
        _show_cost(name, found)


def _show_cost(name: str, found: "Cost") -> None:
    from bothways.advice.costs import RUNTIME_BYTES, TRAINING_RUNTIME_BYTES

    table = plain_table()
    table.show_header = False
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    share = f"{100 * found.attention_share:.0f} % compares tokens and grows with the length; training takes 3 times it"
    table.add_row("parameters", f"{found.parameters:,}", "")
    table.add_row("FLOPs a token", f"{found.flops_per_token / 1e6:,.1f} M", share)
    table.add_row("FLOPs a batch", f"{found.flops_per_token * found.batch * found.length / 1e9:,.1f} G", "forward pass")
    inference, training = found.inference, found.training
    table.add_row("to infer", _megabytes(inference.peak), "")
    table.add_row("  weights", _megabytes(inference.weights), "")
    table.add_row("  activations", _megabytes(inference.activations), "the peak")
    table.add_row("to train", _megabytes(training.peak), "the peak; less than the sum of these:")
    table.add_row("  weights", _megabytes(training.weights), "")
    table.add_row("  kept weights", _megabytes(training.kept_weights), "of the best epoch so far")
    table.add_row("  optimizer", _megabytes(training.optimizer), "AdamW's two moments")
    table.add_row("  gradients", _megabytes(training.gradients), "")
    table.add_row("  activations", _megabytes(training.activations), "kept for the backward pass")
    texts = "1 text" if found.batch == 1 else f"{found.batch} texts"
    print(f"{name}: {texts} of {found.length} tokens, float32 on a CPU\n")
    print_table(table)
    print(
        f"\nPython and torch themselves take about {RUNTIME_BYTES / 1e6:.0f} MB more, in training "
        f"{TRAINING_RUNTIME_BYTES / 1e6:.0f} MB. MB are millions of bytes."
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
