"""``bothways cost``: arithmetic and memory of a model, and how it compares with a large decoder."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from bothways.cli.options import Flag, PositiveFloat, PositiveInt, bad_usage
from bothways.cli.terminal import plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.advice import Cost, DecoderComparison

EXAMPLE = """\
Example:
  bothways cost roberta-base --batch 32 --length 256
  bothways cost roberta-base --against-decoder \\
    --documents 1000 --decoder-parameters 70e9"""


@Parameter(name="*", group="Comparison with a decoder")
@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """Assumptions of the comparison with a large decoder."""

    documents: PositiveInt = 1000
    """Documents to classify."""
    document_tokens: PositiveInt = 300
    """Tokens of each."""
    prompt_tokens: PositiveInt = 100
    """Tokens of instruction and examples that the decoder reads with each document."""
    answer_tokens: PositiveInt = 5
    """Tokens that it writes for each."""
    decoder_parameters: PositiveFloat = 175e9
    """Its size; the defaults of the decoder are GPT-3's."""
    decoder_layers: PositiveInt = 96
    """Its layers."""
    decoder_hidden: PositiveInt = 12288
    """Its width."""
    decoder_batch: PositiveInt = 32
    """Documents that it works on at once."""
    bytes_per_weight: PositiveFloat = 2.0
    """Of both models: 2 for half precision."""
    accelerator_flops: PositiveFloat = 312e12
    """Operations a second of one accelerator; an A100 in bfloat16."""
    utilisation: PositiveFloat = 0.4
    """The part of that which is reached."""
    accelerator_bandwidth: PositiveFloat = 2e12
    """Bytes a second between its memory and its cores."""
    accelerator_memory: PositiveFloat = 80e9
    """Bytes of its memory."""
    price_per_hour: PositiveFloat = 2.0
    """Of one accelerator, in whatever money."""


def cost(
    model: str,
    /,
    *,
    batch: PositiveInt = 8,
    length: PositiveInt = 128,
    activation_checkpointing: Flag = False,
    against_decoder: Flag = False,
    decoder: DecoderOptions | None = None,
    json: Flag = False,
) -> None:
    """Count a model's operations and memory without building it.

    Prints operations for each token, and memory for inference and training.

    Args:
        model: A model of the catalogue, or a folder with a config.json.
        batch: Texts in a batch.
        length: Tokens of each.
        activation_checkpointing: Train with the option of this name.
        against_decoder: Also compare classifying documents with this model and with a large decoder, on paper.
        decoder: What the comparison rests on.
        json: Print one JSON object.
    """
    from bothways.advice import Assumptions, find_config
    from bothways.advice import against_decoder as compare
    from bothways.advice import cost as cost_of

    name, config = find_config(model)
    with bad_usage():
        found = cost_of(config, batch=batch, length=length, activation_checkpointing=activation_checkpointing)
        comparison = compare(config, Assumptions(**asdict(decoder or DecoderOptions()))) if against_decoder else None
    if json:
        print_json({"name": name, **asdict(found), "against_decoder": comparison and asdict(comparison)})
        return
    _show_cost(name, found)
    if comparison is not None:
        _show_comparison(name, comparison)


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
    table.add_row("  activations", _megabytes(inference.activations), "the most at any moment")
    table.add_row("to train", _megabytes(training.peak), "the most at any moment; less than the sum of what follows")
    table.add_row("  weights", _megabytes(training.weights), "")
    table.add_row("  kept weights", _megabytes(training.kept_weights), "of the epoch kept so far")
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


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


def _show_comparison(name: str, comparison: "DecoderComparison") -> None:
    encoder, decoder, given = comparison.encoder, comparison.decoder, comparison.assumptions
    print(f"\nClassifying {given.documents:,} documents of {given.document_tokens:,} tokens, on paper:\n")
    table = plain_table()
    table.add_column("")
    for heading in (name, "decoder", "times"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = (
        ("parameters", encoder.parameters / 1e6, decoder.parameters / 1e6, "M"),
        ("tokens", encoder.tokens / 1e3, decoder.tokens / 1e3, "k"),
        ("operations", encoder.flops / 1e12, decoder.flops / 1e12, "TFLOPs"),
        ("memory", encoder.memory / 1e9, decoder.memory / 1e9, "GB"),
        ("accelerators", encoder.accelerators, decoder.accelerators, ""),
        ("time", encoder.seconds, decoder.seconds, "s"),
        ("price", encoder.price, decoder.price, ""),
    )
    for label, ours, theirs, unit in rows:
        table.add_row(label, f"{_short(ours)} {unit}", f"{_short(theirs)} {unit}", f"{theirs / ours:,.0f}")
    print_table(table)
    print("\nAssumed, and changed by the option of the same name:")
    for option, value in asdict(given).items():
        print(f"  --{option.replace('_', '-')} {value:g}")
    print(
        "The decoder needs no training, the encoder labelled texts and one fine-tuning. Fees of a hosted decoder, idle"
        "\nmachines and tokenisation are not counted."
    )


def _short(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
