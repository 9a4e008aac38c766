"""A pickle read as a program, without running it: every import and call beyond what tensors need is a fault.

The scanners of pickles block what is known to be bad, and are got round again and again. This one allows what is known
to be needed, follows the stack and the memo as the unpickler does, and takes whatever it cannot follow for a fault.
"""

import io
import pickletools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias, cast

from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.streams import Window

Check: TypeAlias = Callable[[], None]

# Longer arguments are skipped over; no name is as long.
_LONGEST = 2**16
_MOST_STEPS = 5_000_000
_MOST_DEPTH = 4
# An allocation that a pickle of that few bytes has no reason to ask for.
_MOST_BYTES = 2**31
# torch.save before version 1.6: five pickles, of which the first is this number, then the bytes of the tensors.
_LEGACY_MAGIC, _LEGACY_PICKLES = 0x1950A86A20F9469CFC6C, 5
_MOST_PICKLES = 1000
# Bytes of a pickle that picklescan is asked about too; it reads the whole of it.
_MOST_ASKED = 2**24

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
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg", "pathlib._local": "pathlib"}
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_NUMPY_TYPES = re.compile(r"[A-Z][A-Za-z0-9]*DType")
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
_CODECS = frozenset({"latin1", "latin-1", "utf-8", "utf8", "ascii"})


# Modules that run what they are given: all of the standard library's, of any version, and what installs packages.
_RUNNERS = sys.stdlib_module_names | {
    *("nt", "distutils", "imp", "commands", "asyncore", "_interpreters", "_xxsubinterpreters", "pip", "setuptools"),
    "pkg_resources",
}


class _Mark:
    """The mark on the stack."""


@dataclass(frozen=True, slots=True)
class _Global:
    module: str
    name: str


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Bytes that stay where they are."""

    place: int
    size: int


_MARK, _OTHER = _Mark(), object()


def looks_like_pickle(window: Window) -> bool:
    """Return whether a file begins as a pickle of protocol 2 or newer does."""
    head = window.at(0, 2)
    return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def is_pickle(window: Window, check: Check, *, calls: int) -> bool:
    """Return whether a file of any name is a pickle: it imports and makes so many calls, even if it breaks then.

    Plain data of protocol 2 or newer are one too, if they come to an end.
    """
    window.place = 0
    machine = _Machine(window, "", check, _MOST_DEPTH)
    ended = False
    try:
        for _ in machine.run():
            pass
        ended = looks_like_pickle(window)
    except ValueError:
        pass
    named = any(_NAME.fullmatch(name) for name in machine.imported)
    return ended or (named and machine.calls >= calls)


def scan_pickles(window: Window, place: str, check: Check, depth: int = 0) -> Iterator[Fault]:
    """Yield the faults of a file of one pickle or several."""
    if depth > _MOST_DEPTH:
        yield Fault("pickle-broken", "pickles in pickles, deeper than anybody saves", place)
        return
    window.place, read, legacy, imported, faults = 0, 0, False, set(), 0
    while window.place < window.size and read < _MOST_PICKLES:
        if read and not legacy and not looks_like_pickle(window.within(window.place, 2)):
            break
        machine = _Machine(window, place, check, depth)
        try:
            for fault in machine.run():
                faults += 1
                yield fault
        except ValueError as error:
            title = f"a pickle that breaks at byte {window.place}: {error}"
            details = {"imports": sorted(machine.imported)[:20], "calls": machine.calls}
            yield Fault("pickle-broken", title, place, details)
            return
        imported |= machine.imported
        read += 1
        legacy = legacy or (read == 1 and machine.result == _LEGACY_MAGIC)
        if legacy and read == _LEGACY_PICKLES:
            break
    for fault in _second_opinion(window, place, imported):
        faults += 1
        yield fault
    if not faults:
        details = {"imports": sorted(imported)[:50], "pickles": read}
        yield Fault("pickle-data", "a pickle that imports only what tensors and plain data need", place, details)


def _second_opinion(window: Window, place: str, imported: set[str]) -> Iterator[Fault]:
    """Ask picklescan, where it is installed, about what this walk may have missed."""
    if window.size > _MOST_ASKED:
        return
    try:
        from picklescan.scanner import scan_pickle_bytes
    except ImportError:
        return
    found = scan_pickle_bytes(io.BytesIO(window.at(0, window.size)), place)
    bad = sorted(f"{each.module}.{each.name}" for each in found.globals if each.safety.value == "dangerous")
    if unseen := [name for name in bad if name not in imported]:
        yield Fault("pickle-code", f"a pickle that picklescan finds {unseen[0]} in", place, {"imports": unseen})


@dataclass
class _Machine:
    """The unpickler's stack and memo, with strings and numbers on it and everything else unknown."""

    window: Window
    place: str
    check: Check
    depth: int
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    calls: int = 0
    result: Any = None

    def run(self) -> Iterator[Fault]:
        """Follow one pickle to its end.

        Raises:
            ValueError: It breaks.
        """
        for step in range(_MOST_STEPS):
            if step % 4096 == 0:
                self.check()
            opcode, argument = _next(self.window)
            if opcode == "STOP":
                self.result = self.pop()
                return
            yield from self.step(opcode, argument)
        raise ValueError(f"more than {_MOST_STEPS:,} steps")

    def step(self, opcode: str, argument: Any) -> Iterator[Fault]:  # noqa: ANN401 (a string, a number, bytes or None)
        """Do one step."""
        push = self.stack.append
        if opcode in ("GLOBAL", "INST"):
            module, _, name = argument.partition(" ")
            yield from self.imports(module, name)
            if opcode == "INST":
                yield from self.called(self.pop(), tuple(self.to_mark()))
        elif opcode == "STACK_GLOBAL":
            name, module = self.pop(), self.pop()
            yield from self.imports(module, name)
        elif opcode in ("EXT1", "EXT2", "EXT4"):
            yield self.fault("pickle-code", f"imports entry {argument} of the registry of extensions")
            push(_OTHER)
        elif opcode in ("REDUCE", "NEWOBJ"):
            arguments, function = self.pop(), self.pop()
            yield from self.called(function, arguments)
        elif opcode == "NEWOBJ_EX":
            self.pop()
            arguments, function = self.pop(), self.pop()
            yield from self.called(function, arguments)
        elif opcode == "OBJ":
            items = self.to_mark()
            if not items:
                raise ValueError("a call of nothing")
            yield from self.called(items[0], tuple(items[1:]))
        elif opcode == "BUILD" and len(self.stack) > 1 and isinstance(self.stack[-2], _Global):
            self.pop()
            yield self.fault("pickle-code", f"changes {self.top().module}.{self.top().name}, which it imported")
        else:
            self.data(opcode, argument)

    def data(self, opcode: str, argument: Any) -> None:  # noqa: ANN401 (a string, a number, bytes or None)
        """Do a step that imports and calls nothing."""
        stack = self.stack
        if opcode == "MARK":
            stack.append(_MARK)
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if opcode == "MEMOIZE" else argument] = self.top()
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise ValueError(f"entry {argument} of a memo that has none")
            stack.append(self.memo[argument])
        elif opcode in ("TUPLE1", "TUPLE2", "TUPLE3"):
            items = [self.pop() for _ in range(int(opcode[-1]))]
            stack.append(tuple(reversed(items)))
        elif opcode in ("TUPLE", "LIST", "DICT", "FROZENSET"):
            items = self.to_mark()
            stack.append(tuple(items) if opcode == "TUPLE" else _OTHER)
        elif opcode in ("APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK"):
            self.to_mark()
        elif opcode in ("POP", "APPEND", "BUILD"):
            self.stack.pop() if self.stack and self.stack[-1] is _MARK else self.pop()
        elif opcode == "SETITEM":
            self.pop(), self.pop()
        elif opcode == "DUP":
            stack.append(self.top())
        elif opcode in ("BINPERSID", "PERSID"):
            if opcode == "BINPERSID":
                self.pop()
            stack.append(_OTHER)
        elif opcode not in ("PROTO", "FRAME", "READONLY_BUFFER"):
            stack.append(() if opcode == "EMPTY_TUPLE" else _OTHER if argument is None else argument)

    def imports(self, module: Any, name: Any) -> Iterator[Fault]:  # noqa: ANN401 (strings, unless somebody hides them)
        """Push what is imported."""
        if not isinstance(module, str) or not isinstance(name, str):
            yield self.fault("pickle-code", "imports something whose name is made while the pickle runs")
            self.stack.append(_OTHER)
            return
        module = _RENAMED.get(module, module).replace("numpy._core", "numpy.core")
        self.stack.append(_Global(module, name))
        full = f"{module}.{name}"
        if full in self.imported:
            return
        self.imported.add(full)
        if name in ALLOWED.get(module, ()) or (module == "numpy.dtypes" and _NUMPY_TYPES.fullmatch(name)):
            return
        if name in SETTINGS.get(module, ()):
            yield self.fault("pickle-settings", f"imports {full}, settings of a training")
        elif module.split(".")[0] in _RUNNERS:
            yield self.fault("pickle-code", f"imports {full}", {"import": full})
        else:
            yield self.fault("pickle-import", f"imports {full}", {"import": full})

    def called(self, function: Any, arguments: Any) -> Iterator[Fault]:  # noqa: ANN401 (whatever is on the stack)
        """Push the result of a call."""
        if not isinstance(arguments, tuple) and arguments is not _OTHER:
            raise ValueError("a call without arguments")
        self.calls += 1
        self.stack.append(_OTHER)
        given = arguments if isinstance(arguments, tuple) else ()
        if not isinstance(function, _Global):
            yield self.fault("pickle-code", "calls something that was made while the pickle ran")
        elif function == _Global("torch.storage", "_load_from_bytes"):
            if len(given) != 1 or not isinstance(given[0], _Bytes):
                yield self.fault("pickle-code", "loads a pickle that was made while this one ran")
            else:
                from bothways.audit.provenance.contents import inspect

                inner = self.window.within(given[0].place, given[0].size)
                yield from inspect(inner, f"{self.place}, bytes from {given[0].place}", self.check, self.depth + 1)
        elif function == _Global("_codecs", "encode") and not (len(given) == 2 and given[1] in _CODECS):
            yield self.fault("pickle-code", "encodes with a codec that is looked up by name")
        elif max(_numbers(given), default=0) > _MOST_BYTES and function.name in ("bytes", "bytearray", "_reconstruct"):
            yield self.fault("pickle-bomb", f"asks for {max(_numbers(given)):,} bytes by {function.name}")

    def fault(self, rule: str, what: str, details: dict[str, Any] | None = None) -> Fault:
        """Return a fault at the step that was read last."""
        return Fault(rule, f"a pickle {what}", self.place, {"byte": self.window.place, **(details or {})})

    def top(self) -> Any:  # noqa: ANN401 (whatever is on the stack)
        """Return the top of the stack."""
        if not self.stack:
            raise ValueError("an empty stack")
        return self.stack[-1]

    def pop(self) -> Any:  # noqa: ANN401 (whatever is on the stack)
        """Take the top off the stack."""
        found = self.top()
        if found is _MARK:
            raise ValueError("a mark where a value has to be")
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """Take everything above the last mark off the stack, and the mark."""
        items: list[Any] = []
        while self.stack:
            item = self.stack.pop()
            if item is _MARK:
                return items[::-1]
            items.append(item)
        raise ValueError("no mark on the stack")


def _numbers(values: Any) -> Iterator[int]:  # noqa: ANN401 (whatever is on the stack)
    if isinstance(values, int):
        yield values
    elif isinstance(values, tuple):
        for each in values:
            yield from _numbers(each)


_COUNTS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_OPCODES = {each.code: each for each in pickletools.opcodes}
_TEXTS = frozenset({"unicodestring1", "unicodestring4", "unicodestring8", "string1", "string4"})


def _next(window: Window) -> tuple[str, Any]:
    """Read one opcode and its argument; long arguments stay where they are.

    Raises:
        ValueError: There is no such opcode, or its argument is cut off or malformed.
    """
    code = window.read(1)
    if not code:
        raise ValueError("the end of the file before the end of the pickle")
    opcode = _OPCODES.get(code.decode("latin-1"))
    if opcode is None:
        raise ValueError(f"byte {code!r} is no step of a pickle")
    kind = opcode.arg
    if kind is None:
        return opcode.name, None
    if kind.n == pickletools.UP_TO_NEWLINE:
        return opcode.name, _line(window, kind.name)
    if kind.n >= 0:
        return opcode.name, kind.reader(cast("IO[bytes]", _Exact(window)))
    width = _COUNTS[kind.n]
    count = int.from_bytes(_Exact(window).read(width), "little")
    place = window.place
    if count > _LONGEST:
        window.skip(count)
        return opcode.name, _Bytes(place, count)
    content = _Exact(window).read(count)
    if kind.name in _TEXTS:
        return opcode.name, content.decode("utf-8", "surrogatepass")
    if kind.name.startswith("long"):
        return opcode.name, int.from_bytes(content, "little", signed=True)
    return opcode.name, _Bytes(place, count)


def _line(window: Window, kind: str) -> Any:  # noqa: ANN401 (a string or a number)
    lines = [window.line(_LONGEST)]
    if kind == "stringnl_noescape_pair":
        lines.append(window.line(_LONGEST))
    text = " ".join(line.decode("utf-8") for line in lines)
    if kind == "decimalnl_short":
        return int(text) if text not in ("00", "01") else text == "01"
    if kind == "decimalnl_long":
        if len(text) > 4000:
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


class _Exact:
    """A window that pickletools reads from; it gives all that is asked for or fails."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def read(self, count: int) -> bytes:
        content = self._window.read(count)
        if len(content) < count:
            raise ValueError(f"{count} bytes are announced, and {len(content)} are there")
        return content
