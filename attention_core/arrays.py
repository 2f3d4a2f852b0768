"""Whose arrays are these, in which dtype is computed, and the few functions that the Array API standard lacks.

Nothing here imports an array library: NumPy 2, JAX (its tracers too) and array-api-strict name their namespace
themselves, and ``array_api_compat`` is imported only for those that do not (torch, CuPy, dask).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

__all__ = [
    "Array",
    "array_namespace",
    "as_array",
    "broadcast_shapes",
    "cast",
    "common_dtype",
    "compute_dtype",
    "default_int",
    "describe",
    "device_of",
    "dtype_name",
    "if_true",
    "is_real_floating",
    "is_traced",
    "jvp_of",
    "known_finite",
    "known_int",
    "library_name",
    "matmul",
    "read_only",
    "scalar_like",
    "sum_to_shape",
    "transpose",
    "vjp_of",
]

Array: TypeAlias = Any
"""An array of any library that follows the Array API standard."""

_REFUSED_CLASSES = frozenset({"matrix", "MaskedArray"})


def _namespace_of(name: str, x: Any) -> ModuleType:
    cls = type(x)
    if cls.__name__ != "ndarray" and not _REFUSED_CLASSES.isdisjoint(base.__name__ for base in cls.__mro__):
        raise TypeError(f"`{name}` must be a plain array; got a {cls.__module__}.{cls.__qualname__}")
    own: Any = getattr(x, "__array_namespace__", None)
    if own is not None and not isinstance(x, type):
        namespace: ModuleType = own()
        return namespace
    if isinstance(x, (bool, int, float, complex, str, list, tuple, dict, type(None))):
        raise TypeError(f"`{name}` must be an array; got {describe(x)}")
    import array_api_compat  # costs 130 ms, so only for libraries that need it

    try:
        return array_api_compat.array_namespace(x)
    except TypeError:
        raise TypeError(f"`{name}` must be an array; got {describe(x)}") from None


def describe(x: Any) -> str:
    """Say what came, for an error message, in the same words for every library."""
    if hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, type):
        return f"an array of {dtype_name(x.dtype)}"
    name = type(x).__qualname__
    return "None" if x is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def dtype_name(dtype: Any) -> str:
    """Return ``"float32"``, where a library writes ``torch.float32``, and NumPy ``>f4`` for another byte order."""
    return str(getattr(dtype, "name", None) or dtype).rpartition(".")[2]


def array_namespace(*named: tuple[str, Any]) -> ModuleType:
    """Return the one namespace of ``(name, array)`` pairs.

    NumPy arrays may stand beside JAX tracers, as constants of the traced function; any other mixture: ``TypeError``.
    """
    (first, array), *others = named
    namespace = _namespace_of(first, array)
    for name, x in others:
        if type(x) is type(array):
            continue
        found = _namespace_of(name, x)
        if found is not namespace:
            namespace = _constants_in_trace(namespace, found, named) or _refuse_mixture(first, namespace, name, found)
    return namespace


def _constants_in_trace(a: ModuleType, b: ModuleType, named: tuple[tuple[str, Any], ...]) -> ModuleType | None:
    if {library_name(a), library_name(b)} == {"numpy", "jax"} and any(is_traced(x) for _, x in named):
        return a if library_name(a) == "jax" else b
    return None


def _refuse_mixture(first: str, namespace: ModuleType, name: str, found: ModuleType) -> ModuleType:
    raise TypeError(
        f"`{name}` is an array of {library_name(found)} but `{first}` is one of {library_name(namespace)}: "
        "all arrays of a call must come from one library"
    )


@cache
def library_name(xp: ModuleType) -> str:
    """Return the library's own name: ``"numpy"``, ``"jax"``, ``"torch"``, ``"array_api_strict"``, ..."""
    parts = xp.__name__.split(".")
    return parts[1] if parts[0] == "array_api_compat" else parts[0]


def is_traced(x: Any) -> bool:
    """Say whether ``x`` is a JAX tracer, whose values cannot be looked at."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.core.Tracer)


def cast(xp: ModuleType, x: Array, dtype: Any) -> Array:
    """Return ``x`` in ``dtype``: itself where it has it already."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def as_array(xp: ModuleType, x: Any) -> Array:
    """Return ``x`` as an array of ``xp``: NumPy constants inside a JAX trace are the one case where that changes it."""
    return xp.asarray(x) if not hasattr(x, "shape") or library_name(xp) == "jax" else x


def device_of(xp: ModuleType, x: Array) -> Any:
    """Return the device to create arrays on beside ``x``; ``None`` under JAX, whose new arrays follow their use."""
    return None if library_name(xp) == "jax" else getattr(x, "device", None)


def default_int(xp: ModuleType) -> Any:
    """Return the default integer dtype (int32 under JAX unless x64 is enabled)."""
    return xp.arange(0).dtype


def is_real_floating(xp: ModuleType, dtype: Any) -> bool:
    """Say whether ``dtype`` is a real floating-point one; bfloat16 counts, which NumPy's ``isdtype`` does not know."""
    if dtype == xp.float32 or dtype == xp.float64:
        return True
    if "bfloat16" in str(dtype):
        return True
    try:
        return bool(xp.isdtype(dtype, "real floating")) and not dtype_name(dtype).startswith(("float4", "float8"))
    except TypeError:  # NumPy's refuses the dtypes of other packages, and structured ones
        return False


def common_dtype(xp: ModuleType, *dtypes: Any) -> Any:
    """Return ``result_type(*dtypes)``."""
    first = dtypes[0]
    if dtypes.count(first) == len(dtypes):
        return first  # the usual case, without the library's slower promotion
    return xp.result_type(*dtypes)


def compute_dtype(xp: ModuleType, *dtypes: Any) -> Any:
    """Return ``result_type(*dtypes, float32)``: 16-bit inputs are computed in float32, float64 stays float64."""
    common = common_dtype(xp, *dtypes)
    return common if common == xp.float32 or common == xp.float64 else xp.result_type(common, xp.float32)


def known_int(x: Any) -> int | None:
    """Return ``x`` as a Python integer, or ``None`` where it is traced and so not known."""
    return None if is_traced(x) else int(x)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast shape by the usual rules; ``ValueError`` if there is none."""
    length = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (length - len(shape)) + tuple(shape) for shape in shapes]
    out = []
    for sizes in zip(*padded, strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        out.append(others.pop() if others else 1)
    return tuple(out)


def transpose(xp: ModuleType, x: Array) -> Array:
    """Return ``x`` with its last two axes exchanged."""
    return xp.matrix_transpose(x)


def scalar_like(xp: ModuleType, value: float, like: Array) -> Array:
    """Return a 0-d array of ``like``'s dtype and device; a bare number would widen 16-bit arrays in some libraries."""
    return xp.asarray(value, dtype=like.dtype, device=device_of(xp, like))


def known_finite(xp: ModuleType, x: Array) -> bool:
    """Say whether every element is certainly finite; traced values are not certain."""
    finite = xp.all(xp.isfinite(x))
    return False if is_traced(finite) else bool(finite)


def read_only(like: Array, made: Callable[[], Array]) -> Array | None:
    """Return a new array that nobody can write to; ``None`` where the library of ``like`` has no such arrays."""
    if not hasattr(like, "setflags"):
        return None
    x = made()
    x.setflags(write=False)
    return x


def if_true(condition: Any, then: Callable[[], Array], otherwise: Callable[[], Array]) -> Array:
    """Return ``then()`` or ``otherwise()``, which are alike; a traced condition is only known when the program runs."""
    if is_traced(condition):
        found: Array = sys.modules["jax"].lax.cond(condition, then, otherwise)
        return found
    return then() if condition else otherwise()


def matmul(xp: ModuleType, a: Array, b: Array) -> Array:
    """Return ``a @ b`` in the full precision of its dtype.

    JAX would use TF32 or bfloat16 passes for float32 on accelerators; the caller's ``jax.default_matmul_precision`` is
    respected, and ``"highest"`` is taken where nothing was said.
    """
    if xp.__name__ == "jax.numpy":
        chosen = sys.modules["jax"].config.jax_default_matmul_precision
        return xp.matmul(a, b, precision=chosen or "highest")
    return xp.matmul(a, b)


def sum_to_shape(xp: ModuleType, x: Array, shape: tuple[int, ...]) -> Array:
    """Sum ``x`` over the axes along which ``shape`` was broadcast to ``x.shape``: the transpose of broadcasting."""
    extra = x.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        extra + axis for axis, size in enumerate(shape) if size == 1 and x.shape[extra + axis] != 1
    )
    summed = xp.sum(x, axis=axes, keepdims=True) if axes else x
    return xp.reshape(summed, shape)


def vjp_of(xp: ModuleType, fn: Callable[..., Array], params: tuple[Any, ...], cotangent: Array) -> tuple[Any, ...]:
    """Return the cotangents of ``params`` of a caller's function, where the library differentiates (JAX)."""
    cotangents: tuple[Any, ...] = _differentiator(xp, "vjp")(fn, *params)[1](cotangent)
    return cotangents


def jvp_of(xp: ModuleType, fn: Callable[..., Array], params: tuple[Any, ...], tangents: tuple[Any, ...]) -> Array:
    """Return the tangent of a caller's function, where the library differentiates (JAX)."""
    return _differentiator(xp, "jvp")(fn, params, tangents)[1]


def _differentiator(xp: ModuleType, name: str) -> Any:
    if library_name(xp) != "jax":
        raise NotImplementedError(
            f"{library_name(xp)} does not differentiate a caller's function: "
            "give the rule its own vjp, biases.rule(fn, ..., vjp=...)"
        )
    return getattr(sys.modules["jax"], name)
