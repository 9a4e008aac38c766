"""Quantization of linear layers to int8; the layers are chosen by the loss on texts."""

from bothways.quantization.quantize import Quantization, quantize

__all__ = ["Quantization", "quantize"]
