"""One definition of a document: the form of a domain dataclass is made from its own fields.

Each field of the dataclass is in the answer, in the OpenAPI document and in documents that are read, under
its own name and in its own order, unless the ``Form`` says otherwise. A document over several objects is a
pydantic model (a *view*), whose fields state where their values come ``From``. ``write`` writes both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache, cached_property
from itertools import pairwise
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    TypeAdapter,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from api.schemas.base.parts import JsonPart, Money
from api.schemas.base.times import Instant

T = TypeVar("T")
Item = TypeVar("Item")
Annotation = Any
"""A type annotation for pydantic: ``Decimal | None``, ``Annotated[float, Field(ge=0)]``."""
Convert = Callable[[Any], Any]

UtcInstant = Annotated[Instant, AfterValidator(lambda instant: instant.astimezone(UTC))]


def rounded(digits: int) -> PlainSerializer:
    """A number that is rounded to ``digits`` digits."""
    return PlainSerializer(lambda number: round(number, digits))


@dataclass(frozen=True, slots=True)
class From:
    """The source of a value: a path of attributes (``offer.sku.name``), or a function of the whole object.

    A path such as ``use?.hours`` gives null if ``use`` is None. ``unless_none``: a field that is None is left
    out.
    """

    source: str | Callable[[Any], Any]
    unless_none: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) and not callable(self.source):
            raise TypeError(f"a path or a function, found {self.source!r}")


Writer = Callable[[Any], dict[str, Any]]
"""Objects → plain data of JSON."""


def _writer(entries: Iterable[tuple[str, Annotation, From]]) -> Writer:
    """A function that writes all fields in order."""
    told = [
        (name, _getter(value.source), _converter(annotation), value.unless_none)
        for name, annotation, value in entries
    ]

    def write_all(whole: Any) -> dict[str, Any]:
        document = {}
        for name, get, convert, unless_none in told:
            value = get(whole)
            if value is not None or not unless_none:
                document[name] = value if convert is None or value is None else convert(value)
        return document

    return write_all


def _getter(source: str | Convert) -> Convert:
    """A function that takes a value out of an object; None where what stands before a ``?`` is None."""
    if not isinstance(source, str):
        return source
    before, _, after = source.partition("?.")
    if not after:
        return attrgetter(source)
    get, rest = attrgetter(before), attrgetter(after)
    return lambda whole: None if (part := get(whole)) is None else rest(part)


def write(view: type[BaseModel], whole: Any) -> dict[str, Any]:
    """``whole`` as plain data in the form of ``view``."""
    return _writer_of(view)(whole)


@cache
def _writer_of(view: type[BaseModel]) -> Writer:
    return _writer(
        (told.serialization_alias or name, _whole(told), _source(told.metadata) or From(name))
        for name, told in view.model_fields.items()
    )


def _whole(told: FieldInfo) -> Annotation:
    return Annotated[(told.annotation, *told.metadata)] if told.metadata else told.annotation


def _source(metadata: Iterable[Any]) -> From | None:
    return next((one for one in metadata if isinstance(one, From)), None)


def _converter(annotation: Annotation) -> Convert | None:
    """A function that makes plain data of a value that is not None; None if the value is plain already."""
    origin: Any = get_origin(annotation)
    parts = get_args(annotation)
    if origin is Annotated:
        return _told_converter(parts[1:]) or _converter(parts[0])
    if origin in (Union, UnionType):
        converts = [_converter(part) for part in parts if part is not NoneType]
        return converts[0] if len(set(converts)) == 1 else None
    if origin in (list, tuple):
        return _list_of(_converter(parts[0]))
    if origin is dict:
        return _dict_of(_converter(parts[0]), _converter(parts[1]))
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, BaseModel):
        return _writer_of(annotation)
    if issubclass(annotation, StrEnum):
        return str
    return date.isoformat if issubclass(annotation, date) else None


def _told_converter(metadata: Sequence[Any]) -> Convert | None:
    for one in reversed(metadata):
        if isinstance(one, Form):
            return one.write
        if isinstance(one, PlainSerializer):
            return cast("Convert", one.func)
    return None


def _list_of(convert: Convert | None) -> Convert:
    if convert is None:
        return list
    return lambda values: [convert(value) for value in values]


def _dict_of(of_name: Convert | None, of_value: Convert | None) -> Convert:
    if of_name is None and of_value is None:
        return dict
    name_of, value_of = of_name or _same, of_value or _same
    return lambda values: {name_of(name): value_of(value) for name, value in values.items()}


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Entry:
    """A field of a document. Without ``default`` it may not be left out."""

    name: str
    annotation: Annotation
    source: From
    default: Any = field(default=...)


_FORMS: dict[type, Form[Any]] = {}


class Form(Generic[T]):
    """The JSON form of a dataclass. As metadata (``Annotated[Offer, OFFER]``) it is a type for pydantic.

    ``name`` is its name in the OpenAPI document, ``about`` its description there (default: the docstring of
    the dataclass). ``rename`` maps fields to other names, ``leave_out`` names fields that are not written,
    and ``inline`` names nested dataclasses whose fields are written in this document. ``adds`` has derived
    values with their annotation and ``From``; they are written and not read. ``types`` has annotations with
    limits or with another JSON type; null stays allowed. ``order`` has runs of names that follow one another.
    ``unless_none`` names fields that are written only if they are not None.

    For reading: with ``lenient``, fields with a default may be left out, and ``optional`` has further
    defaults. For fields in ``or_null``, null means the default of the dataclass. ``prepare`` completes and
    checks the values by name before the dataclass is made, and raises ValueError that says what was expected.
    """

    def __init__(
        self,
        cls: type[T],
        *,
        name: str = "",
        about: str = "",
        rename: Mapping[str, str] | None = None,
        leave_out: Collection[str] = (),
        inline: Collection[str] = (),
        adds: Mapping[str, Annotation] | None = None,
        types: Mapping[str, Annotation] | None = None,
        order: Collection[str] = (),
        unless_none: Collection[str] = (),
        lenient: bool = False,
        optional: Mapping[str, Any] | None = None,
        or_null: Collection[str] = (),
        prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        if cls in _FORMS:
            raise TypeError(f"{cls.__name__} already has a form")
        _FORMS[cls] = self
        self.cls = cls
        self.name = name or f"{cls.__name__}Form"
        self.left_out = frozenset(leave_out)
        self.inlined = frozenset(inline)
        self._about = about
        self._rename = rename or {}
        self._adds = adds or {}
        self._types = types or {}
        self._order = order
        self._unless_none = unless_none
        self._lenient = lenient
        self._optional = optional or {}
        self._or_null = frozenset(or_null)
        self._prepare = prepare

    @cached_property
    def write(self) -> Writer:
        """The function that makes plain data of an object."""
        return _writer((entry.name, entry.annotation, entry.source) for entry in self.entries)

    def read(self, data: Any) -> T:
        """The object that plain data describes. Raises pydantic's ValidationError."""
        return self._adapter.validate_python(data)

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        whole: Any = Annotated[self.cls, self]
        return TypeAdapter(whole)

    @cached_property
    def model(self) -> type[BaseModel]:
        """The pydantic type of the document, also used for the OpenAPI document."""
        told: dict[str, Any] = {entry.name: (entry.annotation, entry.default) for entry in self.entries}
        about = self._about or re.sub(r"\bNone\b", "null", self.cls.__doc__ or "")
        model: type[BaseModel] = create_model(
            self.name, __base__=JsonPart, __doc__=about, __module__=__name__, **told
        )
        return model

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The names in the document of those fields of the dataclass that are written."""
        own = (one.name for one in fields(cast("Any", self.cls)))
        return {name: self._rename.get(name, name) for name in own if name not in self._apart}

    @cached_property
    def _apart(self) -> frozenset[str]:
        return self.left_out | self.inlined

    @cached_property
    def _inner(self) -> Mapping[str, Form[Any]]:
        hints = get_type_hints(self.cls)
        return {name: form_of(hints[name]) for name in self.inlined}

    @cached_property
    def entries(self) -> list[Entry]:
        """The fields of the document in their order."""
        found = {entry.name: entry for entry in self._own_entries()}
        for name, annotation in self._adds.items():
            default = Field(default_factory=_nothing) if name in self._optional else ...
            source = _source(get_args(annotation)[1:]) or From(name)
            found[name] = Entry(name, annotation, source, default)
        names = list(found)
        for run in self._order:
            for before, after in pairwise(run.split()):
                names.remove(after)
                names.insert(names.index(before) + 1, after)
        return [found[name] for name in names]

    def _own_entries(self) -> Iterator[Entry]:
        hints = get_type_hints(self.cls, include_extras=True)
        for one in fields(cast("Any", self.cls)):
            if one.name in self._inner:
                for inner in self._inner[one.name].entries:
                    yield _within(one.name, inner)
            elif one.name in self.names:
                name = self.names[one.name]
                annotation = self._annotation(one.name, hints[one.name])
                source = _source(get_args(self._types.get(one.name))[1:]) or From(
                    one.name, one.name in self._unless_none
                )
                default: Any = ...
                if one.name in self._or_null:
                    annotation, default = annotation | None, None
                elif one.name in self._optional:
                    default = self._optional[one.name]
                elif self._lenient and one.default is not MISSING:
                    default = one.default
                elif self._lenient and one.default_factory is not MISSING:
                    default = Field(default_factory=one.default_factory)
                yield Entry(name, annotation, source, default)

    def _annotation(self, name: str, hint: Annotation) -> Annotation:
        told = self._types.get(name)
        if told is None:
            return _annotation(hint)
        return told | None if NoneType in get_args(hint) and Any not in get_args(told) else told

    def made(self, values: dict[str, Any]) -> T:
        """The object that is made from values by their names in the document."""
        if self._prepare is not None:
            values = self._prepare(values)
        given = {name: values[told] for name, told in self._pairs}
        for name in self._or_null:
            if given[name] is None:
                del given[name]
        for name, form in self._inner.items():
            given[name] = form.made(values)
        return self.cls(**given)

    @cached_property
    def _pairs(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.names.items())

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda model: self.made(model.__dict__),
            handler.generate_schema(self.model),
            serialization=core_schema.plain_serializer_function_ser_schema(self.write),
        )


THE_END = From(lambda _: None)
"""The cursor of a list that is given as one page."""


class PageForm(BaseModel, Generic[Item]):
    """A page of a list. ``next_cursor`` is null on the last page."""

    items: list[Item]
    next_cursor: str | None = None

    @classmethod
    def __class_getitem__(cls, item: Any) -> Any:
        """The page type for one kind of item; in the OpenAPI document it is named after its item."""
        page = super().__class_getitem__(item)
        names = (one.name for one in get_args(item)[1:] if isinstance(one, Form))
        name = next(names, getattr(item, "__name__", None))
        return page if name is None else _named(page, f"{name.removesuffix('Form')}Page")


@cache
def _named(page: type[BaseModel], name: str) -> type[BaseModel]:
    return create_model(name, __base__=page, __doc__=PageForm.__doc__)


def _nothing() -> None:
    return None


def form_of(cls: type[T]) -> Form[T]:
    """The form of a dataclass. Raises TypeError if none is defined; a module must import the forms of its
    parts.
    """
    if cls not in _FORMS:
        raise TypeError(
            f"{cls.__name__} has no form: define Form({cls.__name__}), or import the module that defines it"
        )
    return _FORMS[cls]


def _within(name: str, inner: Entry) -> Entry:
    get, rest = attrgetter(name), _getter(inner.source.source)
    return replace(inner, source=From(lambda whole: rest(get(whole))))


def _annotation(hint: Annotation) -> Annotation:
    """The document's annotation for a domain type: exact money, times with Z, forms of nested dataclasses."""
    if hint is Decimal:
        return Money
    if hint is datetime:
        return UtcInstant
    if isinstance(hint, type) and is_dataclass(hint):
        return Annotated[hint, form_of(hint)]
    origin: Any = get_origin(hint)
    parts = get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(_annotation(part) for part in parts)]  # noqa: UP007  made of parts
    if origin is tuple:
        return tuple[tuple(part if part is ... else _annotation(part) for part in parts)]  # type: ignore[misc]
    if origin is frozenset:
        items: Any = tuple[_annotation(parts[0]), ...]  # type: ignore[misc]
        return Annotated[items, AfterValidator(frozenset), PlainSerializer(sorted)]
    if origin is Mapping:
        return dict[_annotation(parts[0]), _annotation(parts[1])]  # type: ignore[misc]
    return hint
