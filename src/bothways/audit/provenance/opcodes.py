"""The opcodes of pickles, read one by one, and the names that pickles may import. Long arguments are skipped."""

import io
import pickletools
import re
import sys
from dataclasses import dataclass
from typing import TypeAlias

from bothways.audit.provenance.files import FilePart

# Longer arguments are skipped; no name is as long.
_LONGEST = 2**16
_MAX_DIGITS = 4000


@dataclass(frozen=True, slots=True)
class SkippedBytes:
    """An argument that was not read."""

    place: int
    size: int


Argument: TypeAlias = str | int | float | bool | SkippedBytes | None

_COUNTS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_OPCODES = {each.code: each for each in pickletools.opcodes}
_TEXTS = frozenset({"unicodestring1", "unicodestring4", "unicodestring8", "string1", "string4"})


def next_opcode(part: FilePart) -> tuple[str, Argument]:
    """Read one opcode and its argument; a ValueError if it is unknown, cut off or malformed."""
    code = part.read(1)
    if not code:
        raise ValueError("the end of the file before the end of the pickle")
    opcode = _OPCODES.get(code.decode("latin-1"))
    if opcode is None:
        raise ValueError(f"byte {code!r} is no step of a pickle")
    kind = opcode.arg
    if kind is None:
        return opcode.name, None
    if kind.n == pickletools.UP_TO_NEWLINE:
        return opcode.name, _line(part, kind.name)
    if kind.n >= 0:
        argument: Argument = kind.reader(io.BytesIO(part.exactly(kind.n)))
        return opcode.name, argument
    count = int.from_bytes(part.exactly(_COUNTS[kind.n]), "little")
    place = part.place
    if count > _LONGEST:
        part.skip(count)
        return opcode.name, SkippedBytes(place, count)
    content = part.exactly(count)
    if kind.name in _TEXTS:
        return opcode.name, content.decode("utf-8", "surrogatepass")
    if kind.name.startswith("long"):
        return opcode.name, int.from_bytes(content, "little", signed=True)
    return opcode.name, SkippedBytes(place, count)


def _line(part: FilePart, kind: str) -> str | int | float | bool:
    lines = [part.line(_LONGEST)]
    if kind == "stringnl_noescape_pair":
        lines.append(part.line(_LONGEST))
    text = " ".join(line.decode("utf-8") for line in lines)
    if kind == "decimalnl_short":
        return int(text) if text not in ("00", "01") else text == "01"
    if kind == "decimalnl_long":
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a whole number of {len(text)} digits")
        return int(text.rstrip("L") or "0")
    if kind == "floatnl":
        return float(text)
    if kind == "stringnl":
        if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
            raise ValueError("a string without quotes")
        return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    if kind == "unicodestringnl":
        return text.encode("latin-1", "backslashreplace").decode("raw_unicode_escape")
    return text


_SCALARS = "bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_TORCH = (
    "FloatStorage DoubleStorage HalfStorage BFloat16Storage LongStorage IntStorage ShortStorage CharStorage "
    "ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage QInt8Storage QUInt8Storage QInt32Storage Size "
    "device dtype Tensor float half double long int short bool bfloat16 strided float8_e4m3fn float8_e5m2 quint8 qint8 "
    f"qint32 per_tensor_affine sparse_coo sparse_csr {_SCALARS}"
)
_NAMES: dict[str, str] = {
    "builtins": "set frozenset dict list tuple int float bool str bytes bytearray complex slice range object",
    "collections": "OrderedDict defaultdict deque Counter",
    "copyreg": "_reconstructor",
    "_codecs": "encode",
    "datetime": "datetime date time timedelta timezone",
    "pathlib": "Path PosixPath WindowsPath PurePosixPath PureWindowsPath",
    "torch": _TORCH,
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_qtensor "
    "_rebuild_sparse_tensor _rebuild_meta_tensor_no_storage",
    "torch.nn.parameter": "Parameter Buffer",
    "torch.serialization": "_get_layout",
    "torch.storage": "UntypedStorage TypedStorage _load_from_bytes",
    "torch.torch_version": "TorchVersion",
    "numpy": f"dtype ndarray {_SCALARS}",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
}
# Imports of pickles of tensors, numbers and plain containers. Each name was looked up, and none runs its arguments.
# `_load_from_bytes` does, and is followed; `_codecs.encode` may for unusual codecs, which are refused.
ALLOWED: dict[str, frozenset[str]] = {module: frozenset(names.split()) for module, names in _NAMES.items()}
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg", "pathlib._local": "pathlib"}
NUMPY_TYPES = re.compile(r"[A-Z][A-Za-z0-9]*DType")
CODECS = frozenset({"latin1", "latin-1", "utf-8", "utf8", "ascii"})
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
# Modules that run their arguments: the standard library's, of any version, and those that install packages.
RUNNERS = sys.stdlib_module_names | {
    *("nt", "distutils", "imp", "commands", "asyncore", "_interpreters", "_xxsubinterpreters", "pip", "setuptools"),
    "pkg_resources",
}
