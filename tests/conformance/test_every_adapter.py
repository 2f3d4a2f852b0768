"""Every adapter is asked a case of every group, so that none rots: it passes, refuses in words, or differs as known."""

import importlib.util

import pytest

from conformance import adapters
from conformance.adapters import KNOWN
from conformance.format import read_groups
from conformance.runner import FAIL, PASS, UNSUPPORTED, ask

OURS = ("numpy", "array-api-strict", "array-api-torch", "jax", "jax-jit", "jax-vmap")
NEEDS = {"onnx": "onnx", "mlx": "mlx", "array-api-strict": "array_api_strict", "flash-attention": "flash_attn"}
# The groups in whose case a peer differs, and as what; "" where it is no named variant: docs/conformance.md says why.
LEAKS = {"visible-nan": ""}  # 0 times a NaN that another row sees
ADDED = {"poison": "", **LEAKS}  # what a masked key holds reaches the output, or, of jax.nn, the gradient of query
DIFFERS = {
    "torch.sdpa-math": ADDED,
    "torch.sdpa-flash": ADDED,
    "torch.flex": LEAKS,
    "torch.mha": {"empty-row": "empty=nan", **ADDED},
    "jax.nn": {"lse": "gradient=lse_stopped", **ADDED},
    "onnx": {"overflow": "", **ADDED},
    "mlx": LEAKS,
}
# `torch` is the article's lines: its groups alone.
LEAST = {"torch": 7}


def marks(name):
    return [pytest.mark.slow, *([pytest.mark.torch] if "torch" in name else [])]


def case_of(group, adapter):
    """The last case of the group that the adapter takes, or the last."""
    taken = (case for case in reversed(group.cases) if not adapter.supports(case))
    return next(taken, group.cases[-1])


@pytest.mark.parametrize("name", [pytest.param(known.name, marks=marks(known.name)) for known in KNOWN])
def test_a_case_of_every_group(name):
    need = NEEDS.get(name, name.partition("-")[0].partition(".")[0])
    if name != "numpy" and need != "array" and importlib.util.find_spec(need) is None:
        pytest.skip(f"{name} needs {need}")
    adapter, known = adapters.load(name), DIFFERS.get(name, {})
    answered = 0
    for group in read_groups():
        case = case_of(group, adapter)
        row = ask(group, case, adapter, "float32" if "float32" in case.dtypes else case.dtypes[0])
        answered += row.status in (PASS, FAIL)
        said = (case.id, row.status, row.matches, row.note, row.verdict)
        if group.name in known:
            assert row.status == FAIL, said
            assert known[group.name] in (row.matches or ("",)), said
        elif name in OURS:
            assert (row.status, dict(row.lacking)) == (PASS, {}), said
        else:
            assert row.status in (PASS, UNSUPPORTED), said
    assert answered >= LEAST.get(name, 20)
