"""Names that pickles may import: what tensors, numbers and plain containers need, each looked up for what it does."""

import re
import sys

_TENSORS = frozenset({"FloatStorage", "DoubleStorage", "HalfStorage", "BFloat16Storage", "LongStorage", "IntStorage"})
_SCALARS = "bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_TORCH = (
    "ShortStorage CharStorage ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage QInt8Storage "
    "QUInt8Storage QInt32Storage Size device dtype Tensor float half double long int short bool bfloat16 strided "
    "float8_e4m3fn float8_e5m2 quint8 qint8 qint32 per_tensor_affine sparse_coo sparse_csr " + _SCALARS
)
# What a pickle of tensors, numbers and plain containers imports: every name was looked up, and none runs what it is
# given. `_load_from_bytes` does, and is followed; `_codecs.encode` may for strange codecs, which are refused.
ALLOWED: dict[str, frozenset[str]] = {
    "builtins": frozenset(
        {"set", "frozenset", "dict", "list", "tuple", "int", "float", "bool", "str", "bytes", "bytearray", "complex"}
        | {"slice", "range", "object"}
    ),
    "collections": frozenset({"OrderedDict", "defaultdict", "deque", "Counter"}),
    "copyreg": frozenset({"_reconstructor"}),
    "_codecs": frozenset({"encode"}),
    "datetime": frozenset({"datetime", "date", "time", "timedelta", "timezone"}),
    "pathlib": frozenset({"Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}),
    "torch": _TENSORS | frozenset(_TORCH.split()),
    "torch._utils": frozenset(
        {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter", "_rebuild_qtensor"}
        | {"_rebuild_sparse_tensor", "_rebuild_meta_tensor_no_storage"}
    ),
    "torch.nn.parameter": frozenset({"Parameter", "Buffer"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch.storage": frozenset({"UntypedStorage", "TypedStorage", "_load_from_bytes"}),
    "torch.torch_version": frozenset({"TorchVersion"}),
    "numpy": frozenset({"dtype", "ndarray", *_SCALARS.split()}),
    "numpy.core.multiarray": frozenset({"_reconstruct", "scalar"}),
    "numpy.core.numeric": frozenset({"_frombuffer"}),
}
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg", "pathlib._local": "pathlib"}
NUMPY_TYPES = re.compile(r"[A-Z][A-Za-z0-9]*DType")
# Settings that the Trainer of transformers leaves beside a model.
SETTINGS: dict[str, frozenset[str]] = {
    "transformers.training_args": frozenset({"TrainingArguments", "OptimizerNames", "ParallelMode"}),
    "transformers.trainer_utils": frozenset(
        {"IntervalStrategy", "SchedulerType", "HubStrategy", "SaveStrategy", "EvaluationStrategy", "FSDPOption"}
    ),
    "transformers.trainer_pt_utils": frozenset({"AcceleratorConfig"}),
    "accelerate.state": frozenset({"PartialState", "AcceleratorState"}),
    "accelerate.utils.dataclasses": frozenset({"DistributedType"}),
    "sentence_transformers.training_args": frozenset(
        {"SentenceTransformerTrainingArguments", "BatchSamplers", "MultiDatasetBatchSamplers"}
    ),
    "sentence_transformers.base.sampler": frozenset({"BatchSamplers", "MultiDatasetBatchSamplers"}),
}
CODECS = frozenset({"latin1", "latin-1", "utf-8", "utf8", "ascii"})


# Modules that run what they are given: all of the standard library's, of any version, and what installs packages.
RUNNERS = sys.stdlib_module_names | {
    *("nt", "distutils", "imp", "commands", "asyncore", "_interpreters", "_xxsubinterpreters", "pip", "setuptools"),
    "pkg_resources",
}
