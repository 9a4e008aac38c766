"""Static analysis of pickles: every import and call beyond what tensors need is a fault.

Scanners that block known bad names are circumvented again and again. This one allows only the names that tensors need,
simulates the unpickler's stack and memo, and reports everything that it cannot follow.
"""

import io
import pickletools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from bothways.audit.finding import Finding
from bothways.audit.provenance.files import Check, FilePart, Inspect
from bothways.audit.provenance.rules import fault

# Arguments with more bytes are skipped; no name is that long.
_LONGEST = 2**16
_MAX_DIGITS = 4000


@dataclass(frozen=True, slots=True)
class SkippedBytes:
    """An argument that was not read."""

    place: int  # offset of its first byte
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
    """Read one opcode and its argument; raise ValueError if it is unknown, truncated or malformed."""
    code = part.read(1)
    if not code:
        raise ValueError("the end of the file before the end of the pickle")
    opcode = _OPCODES.get(code.decode("latin-1"))
    if opcode is None:
        raise ValueError(f"byte {code!r} is not a pickle opcode")
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
# Imports in pickles of tensors, numbers and plain containers. Each name was reviewed, and none runs its arguments,
# except `_load_from_bytes`, whose argument is scanned, and `_codecs.encode` with unusual codecs, which are refused.
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
# Modules that can run their arguments: the standard library of any Python version, and package installers.
RUNNERS = sys.stdlib_module_names | {
    *("nt", "distutils", "imp", "commands", "asyncore", "_interpreters", "_xxsubinterpreters", "pip", "setuptools"),
    "pkg_resources",
}


_MAX_OPCODES = 5_000_000
_MAX_DEPTH = 4
# A pickle of tensors has no reason to allocate more bytes in one call.
_MAX_ALLOCATION = 2**31
# torch.save before version 1.6: five pickles, starting with this number, then the bytes of the tensors.
_LEGACY_MAGIC, _LEGACY_PICKLES = 0x1950A86A20F9469CFC6C, 5
_MAX_PICKLES = 1000
# picklescan reads a pickle as a whole, so it is run on smaller ones only.
_MAX_PICKLESCAN = 2**24

_NAME = re.compile(r"[A-Za-z_][\w.]*")


class _Special(Enum):
    """Items on the stack without a known value: the mark, and any value that is not simulated."""

    MARK = "mark"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Global:
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


Value: TypeAlias = "Argument | _Special | _Global | tuple[Value, ...]"

_MARK, _UNKNOWN = _Special


def looks_like_pickle(part: FilePart) -> bool:
    """Return True if a file starts like a pickle of protocol 2 or newer."""
    head = part.at(0, 2)
    return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def is_pickle(part: FilePart, check: Check, *, calls: int) -> bool:
    """Return True if the content of a file is a pickle.

    A pickle of protocol 2 or newer must reach its end. Any other content must import something and make at least
    ``calls`` calls, even if it breaks afterwards.
    """
    part.place = 0
    machine = _Machine(part, "", check, lambda *_: iter(()), _MAX_DEPTH)
    ended = False
    try:
        for _ in machine.run():
            pass
        ended = looks_like_pickle(part)
    except ValueError:
        pass
    named = any(_NAME.fullmatch(name) for name in machine.imported)
    return ended or (named and machine.calls >= calls)


def scan_pickles(part: FilePart, place: str, check: Check, inspect: Inspect, depth: int) -> Iterator[Finding]:
    """Yield the faults of a file of one or several pickles."""
    if depth > _MAX_DEPTH:
        yield fault("pickle-broken", place, "pickles nested deeper than any program saves them")
        return
    part.place, read, legacy, faults = 0, 0, False, 0
    imported: set[str] = set()
    while part.place < part.size and read < _MAX_PICKLES:
        rest = part.within(part.place, part.size)
        if read and not legacy and not looks_like_pickle(rest) and not is_pickle(rest, check, calls=0):
            break
        machine = _Machine(part, place, check, inspect, depth)
        try:
            for found in machine.run():
                faults += 1
                yield found
        except ValueError as error:
            details = {"imports": sorted(machine.imported)[:20], "calls": machine.calls}
            yield fault("pickle-broken", place, f"a pickle that breaks at byte {part.place}: {error}", details=details)
            return
        imported |= machine.imported
        read += 1
        legacy = legacy or (read == 1 and machine.result == _LEGACY_MAGIC)
        if legacy and read == _LEGACY_PICKLES:
            break
    for found in _picklescan(part, place, imported):
        faults += 1
        yield found
    if not faults:
        yield fault("pickle-data", place, details={"imports": sorted(imported)[:50], "pickles": read})


def _picklescan(part: FilePart, place: str, imported: set[str]) -> Iterator[Finding]:
    """Yield a finding if picklescan is installed and finds dangerous names that this scan did not find."""
    if part.size > _MAX_PICKLESCAN:
        return
    try:
        from picklescan.scanner import scan_pickle_bytes
    except ImportError:
        return
    found = scan_pickle_bytes(io.BytesIO(part.at(0, part.size)), place)
    bad = sorted(f"{each.module}.{each.name}" for each in found.globals if each.safety.value == "dangerous")
    if missed := [name for name in bad if name not in imported]:
        yield fault("pickle-code", place, f"in which picklescan finds {missed[0]}", details={"imports": missed})


@dataclass
class _Machine:
    """A simulation of the unpickler's stack and memo; it follows names, strings, numbers and tuples of these."""

    part: FilePart
    place: str
    check: Check
    inspect: Inspect
    depth: int
    stack: list[Value] = field(default_factory=list)
    memo: dict[Argument, Value] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    calls: int = 0
    result: Value = None

    def run(self) -> Iterator[Finding]:
        """Simulate one pickle to its end and yield its faults; raise ValueError if it breaks."""
        for number in range(_MAX_OPCODES):
            if number % 4096 == 0:
                self.check()
            opcode, argument = next_opcode(self.part)
            if opcode == "STOP":
                self.result = self.pop()
                return
            yield from self.step(opcode, argument)
        raise ValueError(f"more than {_MAX_OPCODES:,} opcodes")

    def step(self, opcode: str, argument: Argument) -> Iterator[Finding]:
        if opcode in ("GLOBAL", "INST"):
            module, _, name = str(argument).partition(" ")
            yield from self.imports(module, name)
            if opcode == "INST":
                yield from self.called(self.pop(), tuple(self.to_mark()))
        elif opcode == "STACK_GLOBAL":
            name_, module_ = self.pop(), self.pop()
            yield from self.imports(module_, name_)
        elif opcode in ("EXT1", "EXT2", "EXT4"):
            yield self.fault("pickle-code", f"imports entry {argument} of the registry of extensions (copyreg)")
            self.stack.append(_UNKNOWN)
        elif opcode in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
            if opcode == "NEWOBJ_EX":
                self.pop()
            arguments, function = self.pop(), self.pop()
            yield from self.called(function, arguments)
        elif opcode == "OBJ":
            items = self.to_mark()
            if not items:
                raise ValueError("a call without a function")
            yield from self.called(items[0], tuple(items[1:]))
        elif opcode == "BUILD" and len(self.stack) > 1 and isinstance(self.stack[-2], _Global):
            self.pop()
            yield self.fault("pickle-code", f"changes {self.top()}, which it imported")
        else:
            self.data(opcode, argument)

    def data(self, opcode: str, argument: Argument) -> None:
        """Simulate an opcode that neither imports nor calls."""
        stack = self.stack
        if opcode == "MARK":
            stack.append(_MARK)
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if opcode == "MEMOIZE" else argument] = self.top()
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise ValueError(f"entry {argument} is missing from the memo")
            stack.append(self.memo[argument])
        elif opcode in ("TUPLE1", "TUPLE2", "TUPLE3"):
            items = [self.pop() for _ in range(int(opcode[-1]))]
            stack.append(tuple(reversed(items)))
        elif opcode in ("TUPLE", "LIST", "DICT", "FROZENSET"):
            items = self.to_mark()
            stack.append(tuple(items) if opcode == "TUPLE" else _UNKNOWN)
        elif opcode in ("APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK"):
            self.to_mark()
        elif opcode in ("POP", "APPEND", "BUILD"):
            stack.pop() if stack and stack[-1] is _MARK else self.pop()
        elif opcode == "SETITEM":
            self.pop(), self.pop()
        elif opcode == "DUP":
            stack.append(self.top())
        elif opcode in ("BINPERSID", "PERSID"):
            if opcode == "BINPERSID":
                self.pop()
            stack.append(_UNKNOWN)
        elif opcode not in ("PROTO", "FRAME", "READONLY_BUFFER"):
            stack.append(() if opcode == "EMPTY_TUPLE" else _UNKNOWN if argument is None else argument)

    def imports(self, module: Value, name: Value) -> Iterator[Finding]:
        if not isinstance(module, str) or not isinstance(name, str):
            yield self.fault("pickle-code", "imports a name that is computed while the pickle runs")
            self.stack.append(_UNKNOWN)
            return
        module = RENAMED.get(module, module).replace("numpy._core", "numpy.core")
        self.stack.append(_Global(module, name))
        full = f"{module}.{name}"
        if full in self.imported:
            return
        self.imported.add(full)
        if name in ALLOWED.get(module, ()) or (module == "numpy.dtypes" and NUMPY_TYPES.fullmatch(name)):
            return
        if name in SETTINGS.get(module, ()):
            yield self.fault("pickle-settings", f"imports {full}, settings of a training")
        else:
            rule = "pickle-code" if module.split(".")[0] in RUNNERS else "pickle-import"
            yield self.fault(rule, f"imports {full}", {"import": full})

    def called(self, function: Value, arguments: Value) -> Iterator[Finding]:
        if not isinstance(arguments, tuple) and arguments is not _UNKNOWN:
            raise ValueError("a call without arguments")
        self.calls += 1
        self.stack.append(_UNKNOWN)
        given = arguments if isinstance(arguments, tuple) else ()
        if not isinstance(function, _Global):
            yield self.fault("pickle-code", "calls an object that was created while the pickle ran")
        elif str(function) == "torch.storage._load_from_bytes":
            if len(given) == 1 and isinstance(given[0], SkippedBytes):
                inner = self.part.within(given[0].place, given[0].size)
                yield from self.inspect(inner, f"{self.place}, bytes from {given[0].place}", self.depth + 1)
            else:
                yield self.fault("pickle-code", "loads a pickle that was created while this one ran")
        elif str(function) == "_codecs.encode" and not (len(given) == 2 and given[1] in CODECS):
            yield self.fault("pickle-code", "encodes with a codec that is looked up by name")
        elif function.name in ("bytes", "bytearray", "_reconstruct"):
            allocated = max(_numbers(given), default=0)
            if allocated > _MAX_ALLOCATION:
                yield self.fault("pickle-bomb", f"allocates {allocated:,} bytes with {function.name}")

    def fault(self, rule: str, what: str, details: Mapping[str, object] | None = None) -> Finding:
        return fault(rule, self.place, what, details={"byte": self.part.place, **(details or {})})

    def top(self) -> Value:
        if not self.stack:
            raise ValueError("an empty stack")
        return self.stack[-1]

    def pop(self) -> Value:
        if self.top() is _MARK:
            raise ValueError("a mark in place of a value")
        return self.stack.pop()

    def to_mark(self) -> list[Value]:
        """Pop everything above the last mark, and the mark."""
        items: list[Value] = []
        while self.stack:
            item = self.stack.pop()
            if item is _MARK:
                return items[::-1]
            items.append(item)
        raise ValueError("no mark on the stack")


def _numbers(value: Value) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)
