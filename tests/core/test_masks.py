"""Every mask against a plain loop over its pairs, on every library, for positions of every kind; and how masks look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_np import Mask, attention_scores, dot_product_attention, masks, vjp
from tests.core.libraries import EACH, EACH_ONCE, JITTED, NUMPY, Library
from tests.core.pictures import ALL, BATCH, HEADS, KEYS, POSITIONS, QUERIES, Picture, loop

SOME = [picture for picture in ALL if picture.name in ("causal", "chunked(3)", "prefix(B)", "~(a | b) & c")]
SIZES: dict[str, Any] = {"heads": HEADS, "batch": BATCH}


def named(pictures: list[Picture]) -> Any:
    return pytest.mark.parametrize("picture", pictures, ids=lambda picture: picture.name)


def array(library: Library, picture: Picture, positions: tuple[Any, Any], **sizes: Any) -> np.ndarray:
    def draw(query_positions: Any, key_positions: Any, *arrays: Any) -> Any:
        where = {"query_positions": query_positions, "key_positions": key_positions}
        mask = picture.make(masks, *arrays)
        return mask.array(QUERIES, KEYS, xp=library.xp, **where, **{**SIZES, **sizes})

    return library.numpy(library.call(draw, *positions, *picture.arrays))


@pytest.mark.parametrize("where", POSITIONS)
@named(ALL)
def test_array_is_the_loop(picture: Picture, where: str) -> None:
    np.testing.assert_array_equal(array(NUMPY, picture, POSITIONS[where]), loop(picture.see, *POSITIONS[where]))


@named(ALL)
@EACH_ONCE
def test_array_is_the_loop_on_every_library(library: Library, picture: Picture) -> None:
    if library.name == "array_api_strict" and picture.name.startswith("array"):
        with pytest.raises(TypeError):  # its arrays let no stranger answer their operators
            array(library, picture, POSITIONS["integers"])
        return
    np.testing.assert_array_equal(array(library, picture, POSITIONS["integers"]), loop(picture.see, 4, 1))


@pytest.mark.parametrize("where", ["per item", "uint8"])
@named(SOME[:2])
@EACH
def test_positions_are_read_alike_on_every_library(library: Library, picture: Picture, where: str) -> None:
    np.testing.assert_array_equal(array(library, picture, POSITIONS[where]), loop(picture.see, *POSITIONS[where]))


@pytest.mark.parametrize("where", ["int8", "0-d", "mixed dtypes"])
@named(SOME[1:3])
def test_positions_may_be_traced(picture: Picture, where: str) -> None:
    np.testing.assert_array_equal(array(JITTED, picture, POSITIONS[where]), loop(picture.see, *POSITIONS[where]))


@pytest.mark.parametrize("where", ["integers", "per item"])
@named(ALL)
def test_a_call_reads_the_mask_as_the_loop_does(picture: Picture, where: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(*BATCH, *s)) for s in ((HEADS, QUERIES, 7), (1, KEYS, 7), (1, KEYS, 4)))
    query_positions, key_positions = POSITIONS[where]
    call = {"query_positions": query_positions, "key_positions": key_positions}
    mask, seen = picture.make(masks, *picture.arrays), loop(picture.see, *POSITIONS[where])
    np.testing.assert_array_equal(attention_scores(q, k, mask=mask, **call) > -np.inf, seen)
    weights = dot_product_attention(q, k, v, mask=mask, return_weights=True, **call).weights
    np.testing.assert_array_equal(weights > 0, seen)
    np.testing.assert_allclose(weights.sum(-1), seen.any(-1), atol=1e-12)
    gradient = vjp(q, k, v, mask=mask, **call)[1](np.ones((*BATCH, HEADS, QUERIES, 4))).value
    np.testing.assert_array_equal(gradient[..., 0] != 0, seen.any((-3, -2))[..., None, :])


def test_no_batch_and_many_batch_axes() -> None:
    lengths = np.arange(24).reshape(2, 3, 1, 4)
    got = masks.key_lengths(lengths).array(1, 30, batch=(2, 3, 5, 4))
    assert got.shape == (2, 3, 5, 4, 1, 1, 30)
    np.testing.assert_array_equal(got.sum(-1)[..., 0, 0], np.broadcast_to(lengths, (2, 3, 5, 4)))
    np.testing.assert_array_equal(masks.causal().array(2, 3), [[[1, 0, 0], [1, 1, 0]]])


def test_lower_right_puts_the_last_query_at_the_last_key() -> None:
    for queries, keys in ((2, 5), (5, 2), (4, 4)):
        expected = loop(
            lambda p, more=keys - queries: p.key <= p.query + more, batch=(), heads=1, queries=queries, keys=keys
        )
        np.testing.assert_array_equal(masks.causal_lower_right().array(queries, keys), expected)


def test_lower_right_sets_the_positions_that_all_other_masks_read() -> None:
    mask = masks.causal_lower_right() & (masks.sliding_window(1, None) | masks.prefix(1)) & ~masks.chunked(2)

    def see(p: Any) -> bool:
        q = p.query + 4
        return p.key <= q and (p.key >= q - 1 or p.key < 1) and q // 2 != p.key // 2

    np.testing.assert_array_equal(mask.array(3, 7), loop(see, batch=(), heads=1, queries=3, keys=7))
    assert mask.array(3, 7).any()


def test_mask_of_another_kind_than_ours() -> None:
    """A caller may derive a mask: two methods, and the defaults of the others are true of every mask."""

    class Diagonal(Mask):
        def visible(self, pairs: Any) -> Any:
            return pairs.query_index == pairs.key_index

    got = masks.Mask.array(Diagonal() | masks.prefix(1), 2, 3)
    np.testing.assert_array_equal(got, [[[1, 0, 0], [1, 1, 0]]])
    with pytest.raises(NotImplementedError, match=r"Mask must define visible\(pairs\)"):
        Mask().array(2, 3)


# A rule of the caller's own


def test_rule_is_given_index_arrays_that_broadcast() -> None:
    shapes, numbers = [], []

    def fn(batch: Any, head: Any, query: Any, key: Any) -> Any:
        shapes.append([x.shape for x in (batch, head, query, key)])
        numbers.append([x.reshape(-1).tolist() for x in (batch, head, query, key)])
        return (batch + head + query + key) >= 0

    masks.rule(fn).array(QUERIES, KEYS, **SIZES, query_positions=7)
    assert shapes == [[(2, 3, 1, 1, 1), (2, 1, 1), (3, 1), (1, 5)]]
    assert numbers == [[[0, 1, 2, 3, 4, 5], [0, 1], [7, 8, 9], [0, 1, 2, 3, 4]]]


@pytest.mark.parametrize("result", [1.0, np.ones((3, 5)), np.ones(5, int), None])
def test_rule_must_return_booleans(result: Any) -> None:
    with pytest.raises(TypeError, match=r"function of masks\.rule must return booleans; rule\(.*\) returned"):
        masks.rule(lambda *indices: result).array(QUERIES, KEYS)


@pytest.mark.parametrize("shape", [(4,), (5, 3), (2, 3, 5), (7, 1, 3, 5)])
def test_rule_must_return_booleans_that_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"masks\.rule must return booleans that broadcast to \(1, 3, 5\)") as raised:
        masks.rule(lambda *indices: np.ones(shape, bool)).array(QUERIES, KEYS)
    assert str(raised.value).endswith(f"returned shape {shape}")


def test_rule_may_return_one_boolean() -> None:
    assert masks.rule(lambda *indices: True).array(2, 3).all()
    assert not masks.rule(lambda *indices: np.array(False)).array(2, 3).any()


# Pictures


@named(ALL)
def test_every_mask_draws_itself(picture: Picture) -> None:
    mask = picture.make(masks, *picture.arrays)
    drawing = mask.draw(QUERIES, KEYS, tile=2)
    seen = loop(picture.see)[0, 0, 0]
    rows = str(drawing).splitlines()[1 : 1 + QUERIES]
    assert rows == [" ".join("■" if pair else "·" for pair in row) for row in seen]
    html = mask._repr_html_()
    assert html.count("<svg") == html.count("</svg>") == 1
    assert str(drawing).startswith(repr(mask))


def test_drawing_of_positions() -> None:
    drawing = masks.causal().draw(2, 6, tile=3, query_positions=np.array([[4, 0], [1, 1]]), key_positions=1)
    assert str(drawing) == (
        "causal(): 2 queries (down) x 6 keys\n"
        "■ ■ ■ ■ · ·\n"
        "· · · · · ·\n"
        "tiles of 3 x 3: 0 full (█), 2 mixed (▒), 0 empty (·)\n"
        "▒ ▒"
    )


def test_drawing_of_24_by_24() -> None:
    text = str((masks.causal() & masks.sliding_window(7, 0)).draw(24, 24))
    assert text.splitlines()[-4:] == ["tiles of 8 x 8: 0 full (█), 5 mixed (▒), 4 empty (·)", "▒ · ·", "▒ ▒ ·", "· ▒ ▒"]


@pytest.mark.parametrize(
    "mask",
    [
        masks.segments(np.zeros((2, 0), int)),
        masks.dense(np.ones((0, 5), bool)),
        masks.dense(np.ones((0, 1, 4, 5), bool)),
        masks.key_lengths(np.zeros(0, int)),
        masks.key_lengths(np.array([3, 30])),
        masks.segments(np.arange(40) // 7),
        masks.segments(np.zeros((3, 30), np.int8), np.ones((3, 9), np.int8)),
        masks.causal_lower_right() & masks.dense(np.ones((7, 9), bool)),
    ],
    ids=repr,
)
def test_notebook_pictures_of_masks_that_hold_arrays(mask: Any) -> None:
    assert "<svg" in mask._repr_html_()


def test_empty_drawing() -> None:
    assert str(masks.causal().draw(0, 3)).startswith("causal(): 0 queries (down) x 3 keys\ntiles of 8 x 8: 0 full")
