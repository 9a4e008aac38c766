"""Models with linear layers in int8: chosen by what they lose on texts, and saved."""

from bothways.quantization.quantize import Quantization, quantize

__all__ = ["Quantization", "quantize"]
