"""Measurements of bothways beside its peers: ``python -m benchmarks --help``.

Not part of the installed package. The peers (transformers, sentence-transformers, onnxruntime, openvino) are used
here and in the tests only.
"""
