"""Options that several commands share.

The choices repeat those of the modules that they are for, because importing those would load heavy packages;
``tests/cli/test_cli_program.py`` holds the two together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import CycloptsError, Parameter
from cyclopts.validators import Number

from bothways.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Calibration = Literal["auto", "temperature", "vector", "platt", "isotonic", "none"]
Constraint = Literal["accuracy", "latency", "memory", "compute", "pretraining", "research"]
Detector = Literal["max_softmax", "energy", "mahalanobis", "neighbours", "cosine", "mahalanobis_layers", "none"]
Device: TypeAlias = str
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
FamilyName = Literal[
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "albert",
    "deberta",
    "deberta-v2",
    "xlnet",
    "modernbert",
]
ExportFormat = Literal["onnx", "safetensors"]
HeadName = Literal[
    "masked_lm",
    "permutation_lm",
    "next_sentence",
    "sentence_order",
    "replaced_token",
    "sequence",
    "token",
    "span",
    "multiple_choice",
]
Format = Literal["jsonl", "json", "csv", "tsv", "parquet", "txt", "conll"]
Language = Literal["english", "french", "multilingual"]
Overflow = Literal["window", "error", "truncate"]
Pooling = Literal["mean", "cls", "max", "weighted_mean", "mean_sqrt_length"]
Merge = Literal["weighted_mean", "mean", "max", "first", "attention"]
FixedMerge = Literal["weighted_mean", "mean", "max", "first"]
Method = Literal["mean", "vote", "stacked"]
Sampling = Literal["proportional", "temperature", "uniform"]
Target = Literal["single", "multi", "regression"]
Loss = Literal["ranking", "cosent", "triplet"]
Scheme = Literal["BIO", "IOB1", "BIOES", "BILOU", "plain"]
SpanScheme = Literal["BIO", "IOB1", "BIOES", "BILOU"]

# A lone hyphen is a file name here: standard input or output.
File = Annotated[str, Parameter(allow_leading_hyphen=True)]
Flag = Annotated[bool, Parameter(show_default=False)]
PositiveInt = Annotated[int, Parameter(validator=Number(gte=1))]
WholeNumber = Annotated[int, Parameter(validator=Number(gte=0))]
Coverage = Annotated[float, Parameter(validator=Number(gt=0, lt=1))]
PositiveFloat = Annotated[float, Parameter(validator=Number(gt=0))]
Columns = Annotated[tuple[str, ...], Parameter(show_default=" ".join)]
# All words up to the next option.
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)]

TEXT: tuple[str, ...] = ("text",)


@Parameter(name="*", group="Model")
@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is found and where it runs."""

    device: Device = "auto"
    """cpu, cuda, cuda:1, mps; auto takes a GPU where there is one."""
    dtype: Dtype = "float32"
    """Precision of the weights."""
    revision: str | None = None
    """Commit (40 hexadecimal digits) that a name on the model hub is pinned to."""
    download: Flag = False
    """Fetch the model from the hub if it is not here; nothing is ever downloaded without this."""
    allow_pickle: Flag = False
    """Also read weights from a .bin file, after a scan, where there is nothing else."""


HERE = ModelOptions()


@Parameter(name="*", group="Comparison with a decoder")
@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """What the comparison with a large decoder rests on."""

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


@contextmanager
def bad_usage() -> Iterator[None]:
    """Turn an invalid value of an option, which only the library can judge, into a usage error."""
    try:
        yield
    except InvalidInput as error:
        raise usage_error(str(error)) from error


def given_of(options: "DataclassInstance") -> dict[str, Any]:
    """The options of a group that were given, by name."""
    return {name: value for name, value in asdict(options).items() if value is not None}


def usage_error(message: str) -> CycloptsError:
    """The error for a command line that makes no sense; it ends the program with exit code 2."""
    return CycloptsError(msg=message)
