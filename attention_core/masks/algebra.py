"""A mask is a small frozen value that says which pairs may attend; masks compose by ``&``, ``|`` and ``~``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..arrays import Array, broadcast_shapes
from ..pairs import Pairs
from ..sizes import Sizes
from ..values import Value
from .tiles import Code, Visibility, all_of, any_of, opposite, settled

__all__ = ["And", "Mask", "Not", "Or"]


class Mask(Value):
    """Which query-key pairs may attend: ``True`` = visible.

    Made by the functions of ``masks`` and composed by ``&`` (both), ``|`` (either) and ``~`` (not); a boolean array may
    stand on either side. A mask of Python values alone is hashable and may be a static argument of ``jax.jit``; one
    that holds arrays is a pytree and goes in as an ordinary argument.

    >>> from attention_np import masks
    >>> masks.sliding_window(2, 0) | masks.global_tokens(1)
    sliding_window(2, 0) | global_tokens(1)
    """

    __array_ufunc__ = None  # lets `array & mask` reach __rand__ instead of being tried element by element

    def visible(self, pairs: Pairs) -> Array:
        """Return booleans that broadcast to ``pairs.shape``: may this query attend to this key?"""
        raise NotImplementedError(f"{type(self).__qualname__} must define visible(pairs)")

    def visibility(self, pairs: Pairs) -> Visibility:
        """Say whether the tile is ``EMPTY``, ``FULL`` or, which is always true, ``MIXED``."""
        return settled(self.code(pairs))

    def code(self, pairs: Pairs) -> Code:
        """Return the :class:`Visibility` of a tile as an integer, a traced one where that takes traced values."""
        return Visibility.MIXED

    def check(self, sizes: Sizes) -> None:
        """Raise if this mask does not fit a call of these sizes."""

    def extent(self) -> tuple[int, ...]:
        """Shape ``(..., heads, queries, keys)`` that the mask's own arrays have, 1 where they fix nothing."""
        return (1, 1, 1)

    def parts(self) -> Iterator[Mask]:
        """Walk over this mask and all that it is composed of."""
        yield self

    def __and__(self, other: Any) -> Mask:
        return And(self, _as_mask(other))

    def __rand__(self, other: Any) -> Mask:
        return And(_as_mask(other), self)

    def __or__(self, other: Any) -> Mask:
        return Or(self, _as_mask(other))

    def __ror__(self, other: Any) -> Mask:
        return Or(_as_mask(other), self)

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value: compose masks by `&`, `|` and `~`, not by `and`, `or` and `not`")

    def array(
        self,
        queries: int,
        keys: int,
        *,
        heads: int = 1,
        batch: tuple[int, ...] = (),
        query_positions: Any = 0,
        key_positions: Any = 0,
        xp: ModuleType | None = None,
    ) -> Array:
        """Return the dense boolean array ``(..., heads, queries, keys)``.

        ``xp`` is the array library; by default that of the mask's own arrays, else NumPy's if ``attention_np``
        is imported, else that of the backend which is.

        >>> from attention_np import masks
        >>> masks.causal().array(2, 3)[0].astype(int)
        array([[1, 0, 0],
               [1, 1, 0]])
        """
        from .draw import dense_array, sizes_of

        return dense_array(self, sizes_of(queries, keys, heads, batch), query_positions, key_positions, xp)

    def draw(self, queries: int, keys: int, *, tile: int = 8, **positions: Any) -> Any:
        """Return a drawing for ``print`` and for notebooks: which pairs are visible, which tiles empty, full and mixed.

        The first head of the first batch item is drawn; ``query_positions``, ``key_positions`` and ``xp`` are those of
        :meth:`array`.

        >>> from attention_np import masks
        >>> print(masks.causal().draw(3, 4, tile=2))
        causal(): 3 queries (down) x 4 keys
        ■ · · ·
        ■ ■ · ·
        ■ ■ ■ ·
        tiles of 2 x 2: 1 full (█), 2 mixed (▒), 1 empty (·)
        ▒ ·
        █ ▒
        """
        from .draw import Drawing

        return Drawing.of(self, queries, keys, tile, **positions)

    def _repr_html_(self) -> str:
        queries, keys = (size if size != 1 else 24 for size in self.extent()[-2:])
        return str(self.draw(queries, keys)._repr_html_())


def _as_mask(other: Any) -> Mask:
    if isinstance(other, Mask):
        return other
    from .given import dense

    return dense(other)


@dataclass(frozen=True, eq=False, repr=False)
class And(Mask):
    """Pairs that both masks see."""

    left: Mask
    right: Mask

    def visible(self, pairs: Pairs) -> Array:
        return self.left.visible(pairs) & self.right.visible(pairs)

    def code(self, pairs: Pairs) -> Code:
        return all_of(self.left.code(pairs), self.right.code(pairs))

    def check(self, sizes: Sizes) -> None:
        self.left.check(sizes)
        self.right.check(sizes)

    def extent(self) -> tuple[int, ...]:
        return broadcast_shapes(self.left.extent(), self.right.extent())

    def parts(self) -> Iterator[Mask]:
        yield self
        yield from self.left.parts()
        yield from self.right.parts()

    def __repr__(self) -> str:
        return f"{_inside(self.left, Or)} & {_inside(self.right, Or)}"


@dataclass(frozen=True, eq=False, repr=False)
class Or(And):
    """Pairs that either mask sees."""

    def visible(self, pairs: Pairs) -> Array:
        return self.left.visible(pairs) | self.right.visible(pairs)

    def code(self, pairs: Pairs) -> Code:
        return any_of(self.left.code(pairs), self.right.code(pairs))

    def __repr__(self) -> str:
        return f"{self.left!r} | {self.right!r}"


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """Pairs that the mask does not see."""

    mask: Mask

    def visible(self, pairs: Pairs) -> Array:
        return ~self.mask.visible(pairs)

    def code(self, pairs: Pairs) -> Code:
        return opposite(self.mask.code(pairs))

    def check(self, sizes: Sizes) -> None:
        self.mask.check(sizes)

    def extent(self) -> tuple[int, ...]:
        return self.mask.extent()

    def parts(self) -> Iterator[Mask]:
        yield self
        yield from self.mask.parts()

    def __repr__(self) -> str:
        return f"~{_inside(self.mask, And)}"


def _inside(mask: Mask, weaker: type[Mask]) -> str:
    return f"({mask!r})" if isinstance(mask, weaker) else repr(mask)
