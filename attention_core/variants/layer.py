"""What every layer is: a frozen dataclass of arrays, drawn by laws, loaded from and saved to a mapping of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeAlias

from ..arrays import Array, array_namespace, describe
from ..checks import check_dtypes
from ..values import Shown
from .options import Rule

NOT_CAUSAL = "it is not causal, so that what it gave would change with later tokens"
__all__ = ["Layer", "Normal", "Parameter", "Uniform", "check_inputs", "check_layer", "check_optional", "option"]


@dataclass(frozen=True)
class Uniform:
    """The uniform law on ``[low, high)``.

    >>> from attention_core.variants import Uniform
    >>> Uniform()
    Uniform(low=0.0, high=1.0)
    """

    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Normal:
    """The normal law with mean 0.

    >>> from attention_core.variants import Normal
    >>> Normal(0.02)
    Normal(std=0.02)
    """

    std: float = 1.0


Law: TypeAlias = Uniform | Normal


@dataclass(frozen=True)
class Parameter:
    """Shape and law of one parameter of a layer.

    >>> from attention_np import SelfAttention
    >>> SelfAttention.parameters(d_in=3, d_out_kq=2, d_out_v=4)["W_value"]
    Parameter(shape=(3, 4), law=Uniform(low=0.0, high=1.0))
    """

    shape: tuple[int, ...]
    law: Law = Uniform()


def option(rule: Rule | None = None, **kwargs: Any) -> Any:
    """Declare a field that holds a Python value, not arrays: an option of the layer, static under JAX.

    ``rule(name, value)`` returns the value that a layer is made with, or raises.

    >>> from dataclasses import dataclass
    >>> from attention_core.variants.layer import Layer, option
    >>> @dataclass(frozen=True, eq=False)
    ... class Scaled(Layer):
    ...     weight: object
    ...     factor: float = option(default=1.0)
    >>> Scaled.option_names()
    ('factor',)
    """
    return field(metadata={"option": True, "rule": rule}, **kwargs)


class Layer(Shown):
    """A frozen dataclass of arrays that is called with arrays.

    Layers do not learn or remember by themselves: a backend's ``init`` draws one, ``from_state_dict`` loads one, and
    under JAX a layer is a pytree, so that gradients and optimisers see its arrays.

    >>> import numpy as np
    >>> import attention_np as attention
    >>> layer = attention.init(attention.SelfAttention, np.random.default_rng(0), d_in=3, d_out_kq=2, d_out_v=4)
    >>> isinstance(layer, attention.variants.Layer), list(layer.state_dict())
    (True, ['W_query', 'W_key', 'W_value'])
    """

    size_names: ClassVar[tuple[str, ...]]
    no_cache: ClassVar[str] = "it attends to nothing"

    def __post_init__(self) -> None:
        """Check the options; what stands in the other fields may be anything that goes through a pytree."""
        for f in fields(self):  # type: ignore[arg-type]  # a dataclass
            rule = f.metadata.get("rule")
            if rule is not None:
                object.__setattr__(self, f.name, rule(f.name, getattr(self, f.name)))

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the fields that hold Python values; all others hold arrays, layers, or ``None``."""
        return tuple(f.name for f in fields(cls) if f.metadata.get("option"))  # type: ignore[arg-type]  # a dataclass

    @classmethod
    def parameters(cls, **sizes: Any) -> dict[str, Parameter]:
        """Return shape and law of each parameter, by the names of ``state_dict``, in the order of drawing."""
        raise NotImplementedError(f"{cls.__qualname__} must define parameters(**sizes)")

    @classmethod
    def from_state_dict(cls, weights: Mapping[str, Array], *_: Any, **options: Any) -> Self:
        """Make the layer of named weights; a missing, unexpected or misshapen one is a ``ValueError``.

        A layer with options that its weights do not tell, as ``num_heads``, takes them by name.
        """
        raise NotImplementedError(f"{cls.__qualname__} must define from_state_dict(weights)")

    def state_dict(self) -> dict[str, Array]:
        """Return the weights by name."""
        raise NotImplementedError(f"{type(self).__qualname__} must define state_dict()")

    def new_cache(self, kind: type[Any], *, batch: tuple[int, ...] = (), **sizes: int) -> Any:
        """Return an empty cache of a class of ``cache``; a layer that takes none says why by a ``TypeError``."""
        raise TypeError(f"{type(self).__qualname__} takes no cache: {self.no_cache}")

    @classmethod
    def check_sizes(cls, sizes: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes, or raise for a missing, unknown or impossible one."""
        for name in sizes:
            if name not in cls.size_names:
                raise TypeError(f"{cls.__qualname__} has no size `{name}`; its sizes are {', '.join(cls.size_names)}")
        for name in cls.size_names:
            if name not in sizes:
                raise TypeError(
                    f"{cls.__qualname__} needs the size `{name}`; its sizes are {', '.join(cls.size_names)}"
                )
            _check_size(name, sizes[name])
        return dict(sizes)


def check_optional(**sizes: Any) -> None:
    """Raise for a size that is neither ``None`` nor an integer of at least 1."""
    for name, size in sizes.items():
        if size is not None:
            _check_size(name, size)


def _check_size(name: str, size: Any) -> None:
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"`{name}` must be a Python integer; got a {type(size).__qualname__}")
    if size < 1:
        raise ValueError(f"`{name}` must be at least 1; got {size}")


def check_layer(layer: Any) -> None:
    """Raise for what is no class of layers, as ``init`` needs one."""
    if not (isinstance(layer, type) and issubclass(layer, Layer)):
        raise TypeError(f"`layer` must be a layer's class; got {describe(layer)}")


def check_inputs(depth: int, weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> Any:
    """Return the namespace of a layer's inputs and weights, or raise for inputs that are not ``(..., L, d_in)``."""
    xp = array_namespace(*inputs.items(), *weights.items())
    check_dtypes(xp, **inputs, **weights)
    for name, x in inputs.items():
        if x.ndim < 2:
            raise ValueError(f"`{name}` must have at least the axes (L, d_in); got shape {tuple(x.shape)}")
        if x.shape[-1] != depth:
            raise ValueError(f"`{name}` has depth {x.shape[-1]}, but the layer has d_in = {depth}: they must be equal")
    return xp
