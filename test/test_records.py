"""Dataclasses whose methods are compiled at their first use, next to those of the standard decorator."""

import copy
import dataclasses
import functools
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from helion._support import records

T = TypeVar("T")


def classes(dataclass: Callable[..., Any]) -> dict[str, type]:
    """Return the same classes by either decorator."""

    @dataclass
    class Plain:
        x: int
        y: list[int] = field(default_factory=list)
        z: str = "z"

    @dataclass(frozen=True, kw_only=True)
    class Frozen:
        x: int
        y: int = 2
        kind: ClassVar[str] = "a kind"
        hidden: Any = field(default=None, compare=False, repr=False)

    @dataclass(frozen=True, slots=True)
    class Slots:
        x: int
        y: tuple[int, ...] = ()
        z: dict[str, int] = field(default_factory=dict, hash=False)

    @dataclass(frozen=True)
    class Derived(Frozen):
        x: int = 5
        w: float = field(default=0.5, kw_only=False)

    @dataclass(kw_only=True)
    class Computed:
        x: int
        doubled: int = field(init=False)
        seen: list[int] = field(default_factory=list, init=False)
        fixed: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            self.doubled = 2 * self.x

    @dataclass(frozen=True, eq=False)
    class Itself:
        x: int

    @dataclass(frozen=True)
    class Own:
        x: int
        y: int = 0

        def __hash__(self) -> int:
            return 3

        def __repr__(self) -> str:
            return "mine"

    @dataclass(frozen=True)
    class Equal:
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal) and self.x % 2 == other.x % 2

    @dataclass(frozen=True)
    class Nothing:
        pass

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Of(Generic[T]):
        x: T

    return {name: value for name, value in locals().items() if isinstance(value, type)}


STANDARD, LATE = classes(dataclasses.dataclass), classes(records.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Plain", (1,), {}),
    ("Plain", (1, [2]), {"z": "w"}),
    ("Frozen", (), {"x": 1}),
    ("Frozen", (), {"x": 1, "y": 3, "hidden": [4]}),
    ("Slots", (1,), {}),
    ("Slots", (1, (2,)), {"z": {"a": 1}}),
    ("Derived", (), {}),
    ("Derived", (7, 1.5), {"y": 4}),
    ("Computed", (), {"x": 4}),
    ("Itself", (1,), {}),
    ("Own", (1,), {}),
    ("Equal", (4,), {}),
    ("Nothing", (), {}),
    ("Of", (), {"x": "text"}),
]


def outcome(function: Callable[[], Any]) -> Any:
    """Return the result, or the type and text of the error."""
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_instances_are_those_of_the_standard_decorator(name: str, args: Any, kwargs: Any) -> None:
    standard, late = (made[name](*args, **kwargs) for made in (STANDARD, LATE))
    again = LATE[name](*args, **kwargs)
    assert outcome(lambda: repr(late)) == outcome(lambda: repr(standard))
    assert (late == again) == (standard == STANDARD[name](*args, **kwargs))
    assert (late != again) == (standard != STANDARD[name](*args, **kwargs))
    assert name == "Equal" or (late != standard and late.__eq__(3) is NotImplemented)
    if name != "Itself":
        assert outcome(lambda: hash(late)) == outcome(lambda: hash(standard))
    assert [f.name for f in dataclasses.fields(late)] == [f.name for f in dataclasses.fields(standard)]
    assert late.__match_args__ == standard.__match_args__ and type(late).__qualname__ == type(standard).__qualname__
    assert hasattr(late, "__dict__") == hasattr(standard, "__dict__")
    assert outcome(lambda: dataclasses.asdict(late)) == outcome(lambda: dataclasses.asdict(standard))
    for made in (copy.copy(late), copy.deepcopy(late)):
        assert repr(made) == repr(late) and (made == late or name == "Itself")


@pytest.mark.parametrize("name", STANDARD)
def test_changes_are_refused_alike(name: str) -> None:
    args, kwargs = next((args, kwargs) for known, args, kwargs in CALLS if known == name)
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda one: setattr(one, "x", 5),
        lambda one: setattr(one, "other", 5),
        lambda one: delattr(one, "x"),
        lambda one: repr(dataclasses.replace(one, x=9)),
        lambda one: repr(dataclasses.replace(one, other=9)),
    )
    for change in changes:
        standard, late = (outcome(functools.partial(change, made[name](*args, **kwargs))) for made in (STANDARD, LATE))
        if standard != late:  # with slots, the standard one calls ``super`` of another class
            assert name in ("Slots", "Of") and late == (
                dataclasses.FrozenInstanceError,
                "cannot assign to field 'other'",
            )


@pytest.mark.parametrize("made", [STANDARD, LATE])
@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_replace_is_the_standard_one(name: str, args: Any, kwargs: Any, made: Any) -> None:
    one = made[name](*args, **kwargs)
    for changes in ({}, {"x": 9}, {"y": 9}, {"doubled": 9}, {"other": 9}):
        own, standard = (outcome(lambda to=to, c=changes: repr(to.replace(one, **c))) for to in (records, dataclasses))
        assert own == standard
    for other in (made[name], {}, 3):
        own, standard = (outcome(lambda to=to, other=other: to.replace(other)) for to in (records, dataclasses))
        assert own == standard and own[0] is TypeError


@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3, 4, 5), {}), ((), {"other": 1}), ((1,), {"x": 1})])
def test_wrong_arguments_are_refused_alike(name: str, args: Any, kwargs: Any) -> None:
    made = [outcome(lambda made=made: repr(made[name](*args, **kwargs))) for made in (STANDARD, LATE)]
    assert made[0] == made[1]


@pytest.mark.parametrize(("base", "derived"), [(dataclasses, records), (records, dataclasses)])
def test_both_decorators_derive_from_each_other(base: Any, derived: Any) -> None:
    @base.dataclass(frozen=True)
    class Base:
        x: int

    @derived.dataclass(frozen=True)
    class Derived(Base):
        y: int

    one = Derived(1, 2)
    assert one == Derived(1, 2) != Derived(2, 2) and hash(one) == hash(Derived(1, 2)) and "y=2" in repr(one)
    for name in ("x", "y", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, 3)
    with pytest.raises(TypeError, match="frozen"):
        derived.dataclass(type("Loose", (Base,), {}))


@records.dataclass(frozen=True, slots=True)
class Kept:
    x: int
    y: str = "y"


@records.dataclass(frozen=True, kw_only=True)
class Compared:
    x: int
    inside: "Compared | None" = None


@records.dataclass(frozen=True, kw_only=True)
class Counted:
    x: int

    @functools.cached_property
    def doubled(self) -> int:
        return 2 * self.x


class Checked(Counted):
    def __init__(self, *, x: int) -> None:
        if x < 0:
            raise ValueError(x)
        super().__init__(x=x)


def test_replace_takes_no_computed_values_and_calls_own_initializers() -> None:
    one = Counted(x=1)
    assert one.doubled == 2 and records.replace(one, x=3).doubled == 6
    assert records.replace(Checked(x=1), x=2) == Checked(x=2)
    with pytest.raises(ValueError, match="-1"):
        records.replace(Checked(x=1), x=-1)


def test_instances_are_pickled() -> None:
    for one in (Kept(1, "z"), Compared(x=1, inside=Compared(x=2))):
        assert pickle.loads(pickle.dumps(one)) == one


class Hashed(str):
    hashed = 0

    def __hash__(self) -> int:
        Hashed.hashed += 1
        return super().__hash__()


@records.dataclass(frozen=True)
class Key:
    x: str
    y: list[int] = field(default_factory=list, compare=False)

    def __hash__(self) -> int:
        return records.hash_once(self)


def test_a_hash_is_computed_once_in_each_process() -> None:
    Hashed.hashed = 0
    one = Key(Hashed("x"), [1])
    assert hash(one) == hash(one) == hash(Key("x")) == hash((one.x,)) and Hashed.hashed == 2
    assert hash(records.replace(one, x="y")) == hash(Key("y"))
    assert one == pickle.loads(pickle.dumps(one)) and Hashed.hashed == 2
    assert hash(pickle.loads(pickle.dumps(one))) == hash(one) and Hashed.hashed == 3


def test_methods_are_compiled_at_their_first_use() -> None:
    @records.dataclass(frozen=True)
    class Record:
        x: int

    assert "x" not in inspect.signature(vars(Record)["__init__"]).parameters
    Record(1)
    assert list(inspect.signature(Record).parameters) == ["x"]


def test_subclasses_without_a_decorator_keep_the_methods() -> None:
    class Plain(Kept):
        pass

    one = Plain(1)
    assert one == Plain(1) != Kept(1) and repr(one).endswith("Plain(x=1, y='y')") and hash(one) == hash(Kept(1))


def test_other_options_are_refused() -> None:
    with pytest.raises(TypeError, match="order"):
        records.dataclass(order=True)(type("Ordered", (), {}))
