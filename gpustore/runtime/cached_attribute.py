"""Attributes that are computed at their first use: :class:`cached_attribute`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_attribute(Generic[T]):
    """Decorator of a method whose result becomes an attribute of the instance at its first use.

    As :class:`functools.cached_property`, but without the lock that it has up to Python 3.11: one
    for all instances, which a child process that is forked while another thread holds it can never
    take. Two threads may both compute the value; all get that of the first.

    Parameters
    ----------
    compute : callable
        Method with the instance as its only argument.

    Examples
    --------
    >>> class Circle:
    ...     radius = 2.0
    ...
    ...     @cached_attribute
    ...     def area(self):
    ...         return 3.14 * self.radius**2
    >>> circle = Circle()
    >>> circle.area, vars(circle)
    (12.56, {'area': 12.56})
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | T:
        if instance is None:
            return self
        value: T = vars(instance).setdefault(self._name, self._compute(instance))
        return value
