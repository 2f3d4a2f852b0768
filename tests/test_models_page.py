"""Each row of the table of models is a call that works: its options make a layer of weights of its heads."""

import re
from pathlib import Path

import numpy as np
import pytest

from attention_core import GroupedQueryAttention, Rotary, rotary

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
ROWS = re.findall(
    r"^\| (?P<model>[^|]+) \| `(?P<options>num_heads=.+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize(("model", "options"), ROWS, ids=[model for model, _ in ROWS])
def test_a_row_makes_a_layer(model: str, options: str) -> None:
    told = eval(f"dict({options})", {"Rotary": Rotary, "rotary": rotary})
    heads, kv_heads, depth = told["num_heads"], told.get("num_kv_heads", told["num_heads"]), 128
    queries = heads * depth * (2 if told.get("query_gate") else 1)
    shapes = {"q_proj": (queries, 6), "k_proj": (kv_heads * depth, 6), "v_proj": (kv_heads * depth, 6)}
    shapes["o_proj"] = (6, heads * depth)
    weights = {f"{name}.weight": np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    for name, count in (("q_norm", heads), ("k_norm", kv_heads)):
        if "norm_eps" in told or "norm_offset" in told:
            weights[f"{name}.weight"] = np.ones(count * depth if "OLMo" in model else depth, np.float32)
    layer = GroupedQueryAttention.from_state_dict(weights, **told)
    assert np.isfinite(layer(np.ones((3, 6), np.float32))).all()


def test_the_rows_are_found() -> None:
    assert len(ROWS) >= 17
