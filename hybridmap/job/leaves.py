"""Types of the values in a job: real types with bounds, whose errors say what would have been right.

Each carries one sentence of what is expected, so that a message can be "got x, expected y" and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_serializer
from pydantic_core import PydanticCustomError, core_schema

from profiles.workload import MOST_TOKENS

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, SerializerFunctionWrapHandler

EXPECTED = "expected"
"""Type of the validation errors whose message is what would have been right."""

MOST_NUMBER = 1e300
MOST_NODES = 16_384
MOST_GPUS_PER_NODE = 1_024
MOST_SAMPLES = 10_000_000


def refusal(expected: str) -> PydanticCustomError:
    """The error that says what would have been right."""
    return PydanticCustomError(EXPECTED, "{text}", {"text": expected})


def _expecting(inner: core_schema.CoreSchema, expected: str) -> core_schema.CoreSchema:
    def check(value: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValueError:
            raise refusal(expected) from None

    return core_schema.no_info_wrap_validator_function(check, inner)


@dataclass(frozen=True)
class Expected:
    """One sentence in place of all that the type itself would say."""

    text: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return _expecting(handler(source), self.text)


@dataclass(frozen=True)
class Whole:
    """A whole number from ``least`` to ``most``; no text, no ``8.0``, no ``true``."""

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        inner = core_schema.int_schema(strict=True, ge=self.least, le=self.most)
        return _expecting(inner, f"a whole number from {self.least} to {self.most:,}")


@dataclass(frozen=True)
class Number:
    """A finite number within bounds; a whole number stays one, so that a job reads back as it was written."""

    expected: str
    gt: float | None = None
    ge: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        inner = core_schema.float_schema(strict=True, allow_inf_nan=False, gt=self.gt, ge=self.ge, le=self.le)

        def check(value: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
            if not -MOST_NUMBER <= handler(value) <= MOST_NUMBER:  # a whole number that no float holds
                raise refusal(self.expected)
            return value

        return _expecting(core_schema.no_info_wrap_validator_function(check, inner), self.expected)


@dataclass(frozen=True)
class OneOf:
    """One of some words that a table elsewhere lists."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.literal_schema(list(self.words))


Name = Annotated[str, Field(strict=True, min_length=1, max_length=4096), Expected("a name")]
Flag = Annotated[bool, Field(strict=True), Expected("true or false")]
Samples = Annotated[int, Whole(1, MOST_SAMPLES)]
Tokens = Annotated[int, Whole(1, MOST_TOKENS)]
Nodes = Annotated[int, Whole(1, MOST_NODES)]
GpusPerNode = Annotated[int, Whole(1, MOST_GPUS_PER_NODE)]
Finite = Annotated[float, Number("a number")]
Positive = Annotated[float, Number("a positive number", gt=0)]
NotNegative = Annotated[float, Number("a number of at least 0", ge=0)]


@dataclass(frozen=True)
class Share:
    """A share of something, as ``5%`` or ``0.05``; what is kept is the number. From ``least`` to below ``most``."""

    least: float
    most: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        inner = core_schema.float_schema(allow_inf_nan=False, ge=self.least, lt=self.most)
        expected = f"a share such as 5% or 0.05, from {self.least:.0%} to below {self.most:.0%}"

        def number(value: Any) -> Any:
            if isinstance(value, bool):
                raise refusal(expected)
            if isinstance(value, str):
                if not value.endswith("%"):
                    raise refusal(expected)
                return round(float(value[:-1]) / 100.0, 12)
            return value

        return _expecting(core_schema.no_info_before_validator_function(number, inner), expected)


class Section(BaseModel):
    """A mapping of the job file; unknown keys fail."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SparseSection(Section):
    """A section whose normal form leaves out what was not given."""

    @model_serializer(mode="wrap")
    def _given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if not _says_nothing(value)}


def _says_nothing(value: Any) -> bool:
    return value is None or value is False or value in ({}, [])  # 0 is a value: zero_stage has it
