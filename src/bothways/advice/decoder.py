"""An encoder against a large decoder on the same classification, on paper, with every assumption stated."""

import math
from dataclasses import dataclass, fields

from bothways.advice.dry import count_flops
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput
from bothways.families.catalogue import count_parts


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions of the comparison, all changeable. The defaults of the decoder are GPT-3's (arXiv:2005.14165).

    Attributes:
        documents: Documents to classify.
        document_tokens: Tokens of each.
        prompt_tokens: Tokens of the instruction and examples that the decoder reads with each document.
        answer_tokens: Tokens that the decoder writes for each.
        decoder_parameters: Its size.
        decoder_layers: Its layers.
        decoder_hidden: Its width.
        decoder_batch: Documents that it works on at once.
        bytes_per_weight: Of both models: 2 for half precision.
        accelerator_flops: Operations a second of one accelerator at its peak: 312e12, an A100 in bfloat16.
        utilisation: The part of that which is reached.
        accelerator_bandwidth: Bytes a second between its memory and its cores: 2e12, the same.
        accelerator_memory: Bytes of its memory: 80e9, the same.
        price_per_hour: Of one accelerator, in whatever money.

    Raises:
        InvalidInput: A value is not above 0.
    """

    documents: int = 1000
    document_tokens: int = 300
    prompt_tokens: int = 100
    answer_tokens: int = 5
    decoder_parameters: float = 175e9
    decoder_layers: int = 96
    decoder_hidden: int = 12288
    decoder_batch: int = 32
    bytes_per_weight: float = 2
    accelerator_flops: float = 312e12
    utilisation: float = 0.4
    accelerator_bandwidth: float = 2e12
    accelerator_memory: float = 80e9
    price_per_hour: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise InvalidInput(f"{field.name} must be above 0 and finite, but it is {value}.")


@dataclass(frozen=True, slots=True)
class Side:
    """Needs of one of the two models for all documents.

    Attributes:
        parameters: Of the model.
        tokens: Read and written.
        flops: Floating-point operations.
        memory: Bytes of weights, and of the decoder's keys and values.
        accelerators: As many as hold that memory.
        seconds: On these.
        price: Of these.
    """

    parameters: float
    tokens: int
    flops: float
    memory: float
    accelerators: int
    seconds: float
    price: float


@dataclass(frozen=True, slots=True)
class DecoderComparison:
    """Costs of an encoder and of a decoder, and what the comparison rests on."""

    assumptions: Assumptions
    encoder: Side
    decoder: Side


def against_decoder(config: EncoderConfig, assumptions: Assumptions | None = None) -> DecoderComparison:
    """Return what it takes to classify documents with an encoder, and with a decoder that is prompted to.

    The encoder's operations are counted. The decoder's are 2 for each parameter and token, and 4 x layers x width for
    each pair of a token and one before it (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). Reading is limited by
    arithmetic; writing by arithmetic or by the passage of all weights through the cores for each token of a batch,
    whichever takes longer. Documents that are longer than the encoder reads go through it in windows.
    """
    given = assumptions or Assumptions()
    return DecoderComparison(given, _encoder(config, given), _decoder(given))


def _encoder(config: EncoderConfig, given: Assumptions) -> Side:
    window = min(given.document_tokens, config.max_length or given.document_tokens)
    windows = math.ceil(given.document_tokens / window)
    parameters = sum(count_parts(config))
    flops = float(given.documents * windows * count_flops(config, 1, window))
    memory = parameters * given.bytes_per_weight
    seconds = flops / (given.accelerator_flops * given.utilisation)
    return _side(parameters, given.documents * given.document_tokens, flops, memory, seconds, given)


def _decoder(given: Assumptions) -> Side:
    read = given.prompt_tokens + given.document_tokens
    whole = read + given.answer_tokens
    pairwise = 4 * given.decoder_layers * given.decoder_hidden
    # Of the tokens that it could look back at, one looks back at half of them on average.
    reading = given.documents * read * (2 * given.decoder_parameters + pairwise * read / 2)
    writing = given.documents * given.answer_tokens * (2 * given.decoder_parameters + pairwise * whole)
    weights = given.decoder_parameters * given.bytes_per_weight
    keys_and_values = (
        2 * given.decoder_layers * given.decoder_hidden * given.bytes_per_weight * whole * given.decoder_batch
    )
    memory = weights + keys_and_values
    speed = given.accelerator_flops * given.utilisation
    accelerators = math.ceil(memory / given.accelerator_memory)
    passages = math.ceil(given.documents / given.decoder_batch) * given.answer_tokens
    moving = passages * weights / given.accelerator_bandwidth
    seconds = (reading / speed + max(writing / speed, moving)) / accelerators
    return _side(given.decoder_parameters, given.documents * whole, reading + writing, memory, seconds, given)


def _side(parameters: float, tokens: int, flops: float, memory: float, seconds: float, given: Assumptions) -> Side:
    accelerators = math.ceil(memory / given.accelerator_memory)
    price = seconds * accelerators * given.price_per_hour / 3600
    return Side(parameters, tokens, flops, memory, accelerators, seconds, price)
