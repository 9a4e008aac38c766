"""Models with linear layers in int8, chosen by the loss on texts."""

from bothways.quantization.quantize import Quantization, quantize

__all__ = ["Quantization", "quantize"]
