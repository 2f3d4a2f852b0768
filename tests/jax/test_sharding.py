"""Inside ``jax.shard_map``, on four devices forced from one CPU, the tiled kernel equals the definition on one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("jax", reason="the kernel under test is JAX's")

PROGRAM = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false"
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
import attention_jax as attention
from attention_jax import masks

jax.config.update("jax_enable_x64", True)
mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
rng = np.random.default_rng(0)
query, key, value = (jnp.asarray(rng.normal(size=s)) for s in ((4, 2, 8, 3), (4, 1, 6, 3), (4, 1, 6, 5)))
rows, shared = P("x"), P()
first = lambda local: jax.lax.axis_index("x") * local
cases = {
    "batch": ((rows, rows, rows), rows, lambda q: {}, (query, key, value)),
    "replicated keys": ((rows, shared, shared), rows, lambda q: {}, (query, key[:1], value[:1])),
    "split queries": ((P(None, None, "x"), shared, shared), P(None, None, "x"),
                      lambda q: {"query_positions": first(q.shape[2])}, (query, key, value)),
    "split heads": ((P(None, "x"), shared, shared), P(None, "x"), lambda q: {},
                    (query.reshape(2, 4, 8, 3), key[:2], value[:2])),
    "replicated queries": ((shared, rows, rows), rows,
                           lambda q: {"mask": masks.key_lengths(first(2))}, (query[:1], key, value)),
    "all replicated": ((shared, shared, shared), shared, lambda q: {}, (query, key, value)),
}


def local(impl, call, query, key, value):
    given = {"mask": masks.causal(), **call(query)}
    return attention.dot_product_attention(query, key, value, impl=impl, **given)


def loss(impl, specs, out, call, *arrays):
    out = jax.shard_map(partial(local, impl, call), mesh=mesh, in_specs=specs, out_specs=out)(*arrays)
    return (out**2).sum(), out


for name, (specs, out, call, arrays) in cases.items():
    ours, expected = (
        jax.jit(jax.value_and_grad(partial(loss, impl, specs, out, call), argnums=(0, 1, 2), has_aux=True))(*arrays)
        for impl in ("tiled", "dense")
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=name)
    if name == "split queries":
        whole = attention.dot_product_attention(*arrays, mask=masks.causal(), impl="dense")
        np.testing.assert_allclose(ours[0][1], whole, rtol=1e-10, atol=1e-10)
    print(name)
"""


@pytest.mark.slow
def test_shard_map_with_gradients(fresh_python: Callable[..., str]) -> None:
    assert fresh_python(PROGRAM).splitlines() == [
        "batch",
        "replicated keys",
        "split queries",
        "split heads",
        "replicated queries",
        "all replicated",
    ]
