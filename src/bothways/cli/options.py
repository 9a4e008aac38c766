"""Options that several commands share."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from cyclopts import CycloptsError, Parameter, Token
from cyclopts.validators import Number

from bothways.choices import Dtype, Overflow
from bothways.errors import InvalidInput

_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def _token_count(kind: type, words: Sequence[Token]) -> int:
    """Convert 50M, 1.5G or 2000000."""
    del kind
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)", words[0].value.replace("_", "").lower())
    count = 0 if found is None else round(float(found[1]) * _MULTIPLES[found[2]])
    if count < 1:
        raise usage_error(
            f"expected a number of tokens such as 50M (k, M, G and T are thousands to trillions) for "
            f"{words[0].keyword}, got {words[0].value!r}."
        )
    return count


# A lone hyphen is a file name here: standard input or output.
File = Annotated[str, Parameter(allow_leading_hyphen=True)]
Flag = Annotated[bool, Parameter(show_default=False)]
PositiveInt = Annotated[int, Parameter(validator=Number(gte=1))]
TokenCount = Annotated[int, Parameter(converter=_token_count)]
WholeNumber = Annotated[int, Parameter(validator=Number(gte=0))]
PositiveFloat = Annotated[float, Parameter(validator=Number(gt=0))]
Share = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]
Columns = Annotated[tuple[str, ...], Parameter(show_default=" ".join)]
# All words up to the next option.
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)]

TEXT: tuple[str, ...] = ("text",)


@Parameter(name="*", group="Model")
@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of finding a model and of the device that it runs on."""

    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes a GPU where there is one."""
    threads: PositiveInt | None = None
    """CPU threads. Default: as OMP_NUM_THREADS says, else one for each core that the process is granted."""
    dtype: Dtype | None = None
    """Precision of the weights. Default: bfloat16 on a GPU that has it, else float32; float32 to train, compare and
    export. auto: the same, and matrix products in bfloat16 on a CPU that has instructions for them."""
    revision: str | None = None
    """Commit (40 hexadecimal digits) of a name on the model hub; by default the one that its download resolved."""
    download: Flag = False
    """Fetch the model from the hub if it is not here; nothing is ever downloaded without this. A name alone is
    resolved to a commit once, and stands for it from then on."""
    allow_pickle: Flag = False
    """Also read weights from a .bin file, after a scan, where there is nothing else."""

    @property
    def in_full(self) -> "ModelOptions":
        """The same for work in float32, where no precision was chosen."""
        return replace(self, dtype=self.dtype or "float32")


@Parameter(name="*", group="Reading")
@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Options of reading texts."""

    max_length: PositiveInt | None = None
    """Maximum tokens per window. Default: as trained, else the model's limit."""
    on_overflow: Overflow | None = None
    """Longer texts are read in overlapping windows, refused, or cut; by default as the model was saved, or in
    windows."""
    stride: WholeNumber | None = None
    """Tokens that neighbouring windows share; by default a quarter of a window's room, where masked words are learnt
    none."""


HERE = ModelOptions()
AS_IT_CAN = ReadingOptions()


@contextmanager
def bad_usage(*names: str) -> Iterator[None]:
    """Turn an invalid value of an option, which only the library can judge, into a usage error.

    Args:
        names: Options in Python; where a message begins with them, they are spelled as they are typed.
    """
    try:
        yield
    except InvalidInput as error:
        message = str(error)
        named = re.match(r"\w+( and \w+)*", message)
        about = named[0].split(" and ") if named else []
        if named and set(about) <= set(names):
            message = " and ".join(f"--{name.replace('_', '-')}" for name in about) + message[named.end() :]
        raise usage_error(message) from error


def usage_error(message: str) -> CycloptsError:
    """Return the error for a command line that makes no sense; it ends the program with exit code 2."""
    return CycloptsError(msg=message)
