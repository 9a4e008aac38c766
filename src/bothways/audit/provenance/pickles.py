"""A pickle read as a program, without running it: every import and call beyond what tensors need is a fault.

The scanners of pickles block what is known to be bad, and are got round again and again. This one allows what is known
to be needed, follows the stack and the memo as the unpickler does, and takes whatever it cannot follow for a fault.
"""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bothways.audit.provenance.allowed import ALLOWED, CODECS, NUMPY_TYPES, RENAMED, RUNNERS, SETTINGS
from bothways.audit.provenance.opcodes import BytesThere, next_step
from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.streams import FilePart

Check: TypeAlias = Callable[[], None]

_MOST_STEPS = 5_000_000
_MOST_DEPTH = 4
# An allocation that a pickle of that few bytes has no reason to ask for.
_MOST_BYTES = 2**31
# torch.save before version 1.6: five pickles, of which the first is this number, then the bytes of the tensors.
_LEGACY_MAGIC, _LEGACY_PICKLES = 0x1950A86A20F9469CFC6C, 5
_MOST_PICKLES = 1000
# Bytes of a pickle that picklescan is asked about too; it reads the whole of it.
_MOST_ASKED = 2**24

_NAME = re.compile(r"[A-Za-z_][\w.]*")


class _Mark:
    """The mark on the stack."""


@dataclass(frozen=True, slots=True)
class _Global:
    module: str
    name: str


_MARK, _OTHER = _Mark(), object()


def looks_like_pickle(window: FilePart) -> bool:
    """Return whether a file begins as a pickle of protocol 2 or newer does."""
    head = window.at(0, 2)
    return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def is_pickle(window: FilePart, check: Check, *, calls: int) -> bool:
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


def scan_pickles(window: FilePart, place: str, check: Check, depth: int = 0) -> Iterator[Fault]:
    """Yield the faults of a file of one pickle or several."""
    if depth > _MOST_DEPTH:
        yield Fault("pickle-broken", "pickles in pickles, deeper than anybody saves", place)
        return
    window.place, read, legacy, imported, faults = 0, 0, False, set(), 0
    while window.place < window.size and read < _MOST_PICKLES:
        rest = window.within(window.place, window.size)
        if read and not legacy and not looks_like_pickle(rest) and not is_pickle(rest, check, calls=0):
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


def _second_opinion(window: FilePart, place: str, imported: set[str]) -> Iterator[Fault]:
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

    window: FilePart
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
            opcode, argument = next_step(self.window)
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
        elif module.split(".")[0] in RUNNERS:
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
            if len(given) != 1 or not isinstance(given[0], BytesThere):
                yield self.fault("pickle-code", "loads a pickle that was made while this one ran")
            else:
                from bothways.audit.provenance.contents import inspect

                inner = self.window.within(given[0].place, given[0].size)
                yield from inspect(inner, f"{self.place}, bytes from {given[0].place}", self.check, self.depth + 1)
        elif function == _Global("_codecs", "encode") and not (len(given) == 2 and given[1] in CODECS):
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
