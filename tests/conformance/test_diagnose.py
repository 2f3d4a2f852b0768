"""Diagnosis: the stage of a case that departs, and the convention that explains a user's dumped tensors."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from conformance import plain
from conformance.adapters.function import UserFunction
from conformance.cli import app
from conformance.diagnose import diagnose
from conformance.dumped import Dump, split_heads
from conformance.dumps import read_dump
from conformance.errors import UsageError
from conformance.plain import Switches
from conformance.probe import first_departure, stages
from tests.conformance import wrong
from tests.conformance.made import arrays, made

RNG = np.random.default_rng(7)
# Two batch items, four query heads, two key heads, five queries, seven keys, depths 6 and 6.
QUERY, KEY, VALUE = (RNG.normal(size=shape).astype(np.float32) for shape in ((2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 6)))
SCALE = 6**-0.5
ROW, COLUMN = np.arange(5)[:, None], np.arange(7)
MASK = np.array([[True, False, True, True, False, True, False]] * 4 + [[False] * 7])
BIAS = np.linspace(-2, 2, 35).reshape(5, 7)


def out_of(scale=SCALE, switches=None, swap=False, **call):
    query, key, value = (np.swapaxes(x, 1, 2) if swap else x for x in (QUERY, KEY, VALUE))
    out = plain.attend(plain.Call(query, key, value, scale, **call), switches)["out"]
    return out.astype(np.float32)


def names(out, **known):
    found = diagnose(Dump(QUERY, KEY, VALUE, out, **known))
    assert found.explained, [[d.name for d in f.departures] for f in found.findings]
    return {departure.name for departure in found.findings[0].departures}


@pytest.mark.parametrize(
    ("expected", "call", "known"),
    [
        (set(), {}, {}),
        (set(), {"mask": MASK}, {"mask": MASK}),
        (set(), {"bias": BIAS, "softcap": 1.5}, {"bias": BIAS, "softcap": 1.5}),
        ({"scale=1"}, {"scale": 1.0}, {}),
        ({"scale=1/D"}, {"scale": 1 / 6}, {}),
        ({"scale=sqrt(D)"}, {"scale": 6**0.5}, {}),
        ({"scale=1/sqrt(H*D)"}, {"scale": 24**-0.5}, {}),
        ({"mask=causal,upper_left"}, {"mask": COLUMN <= ROW}, {}),
        ({"mask=causal,lower_right"}, {"mask": COLUMN <= ROW + 2}, {}),
        ({"mask=causal,upper_left,without_self"}, {"mask": COLUMN < ROW}, {}),
        ({"mask=window(2,0),lower_right"}, {"mask": (COLUMN <= ROW + 2) & (ROW <= COLUMN)}, {}),
        ({"mask=window(1,1),upper_left"}, {"mask": abs(ROW - COLUMN) <= 1}, {}),
        ({"mask=first_3_keys"}, {"mask": COLUMN < 3}, {}),
        ({"heads=tiled"}, {"switches": Switches(heads="tile")}, {}),
        ({"softcap=20"}, {"softcap": 20.0}, {}),
        ({"softmax=base_2"}, {"switches": Switches(softmax="base_2")}, {}),
        ({"softmax=off_by_one"}, {"sinks": np.zeros(4)}, {}),
        ({"mask=inverted"}, {"mask": ~MASK}, {"mask": MASK}),
        ({"mask=added"}, {"bias": MASK.astype(float)}, {"mask": MASK}),
        ({"empty_row=mean_of_v"}, {"mask": MASK, "switches": Switches(empty_row="mean_of_v")}, {"mask": MASK}),
        ({"empty_row=nan"}, {"mask": MASK, "switches": Switches(empty_row="nan")}, {"mask": MASK}),
        (
            {"softcap=after_bias"},
            {"bias": BIAS, "softcap": 1.5, "switches": Switches(cap="after_bias")},
            {"bias": BIAS, "softcap": 1.5},
        ),
        ({"scale=1", "heads=tiled"}, {"scale": 1.0, "switches": Switches(heads="tile")}, {}),
    ],
)
def test_a_convention_is_found_from_tensors_alone(expected, call, known):
    assert names(out_of(**call), **known) == expected


def test_a_triple_is_found_beside_the_nearest_pairs():
    out = out_of(1.0, Switches(heads="tile"), mask=COLUMN <= ROW)
    assert names(out) == {"scale=1", "heads=tiled", "mask=causal,upper_left"}


def test_the_layout_is_found():
    last = [np.swapaxes(x, 1, 2).copy() for x in (QUERY, KEY, VALUE, out_of())]
    found = diagnose(Dump(*last))
    assert (found.explained, found.findings[0].layout, found.findings[0].departures) == (True, "BLHD", ())
    assert found.looked_at == f"all {QUERY.shape[-2]} query rows"


def test_joined_heads_of_the_output_are_found():
    assert names(np.swapaxes(out_of(), 1, 2).reshape(2, 5, 24)) == {"output=heads_joined"}
    assert names(out_of().reshape(2, 5, 24)) == {"output=not_transposed"}


def test_a_mask_of_lowest_numbers_is_a_bias():
    lowest = np.where(MASK, 0, np.finfo(np.float32).min)
    assert names(out_of(mask=MASK, switches=Switches(empty_row="mean_of_v")), mask=lowest) == set()


def test_key_padding_by_batch_item_is_a_mask():
    padding = np.arange(7) < np.array([[3], [6]])
    assert names(out_of(mask=padding[:, None, None]), mask=padding) == set()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bits_are_explained_within_their_rounding(dtype):
    narrow = [x.astype(dtype) for x in (QUERY, KEY, VALUE)]
    wide = [x.astype(np.float64) for x in narrow]
    out = plain.attend(plain.Call(*wide, SCALE, COLUMN <= ROW))["out"].astype(dtype)
    found = diagnose(Dump(*narrow, out))
    assert [d.name for d in found.findings[0].departures] == ["mask=causal,upper_left"]


def test_float64_computed_in_float32_is_told():
    wide = [x.astype(np.float64) for x in (QUERY, KEY, VALUE)]
    found = diagnose(Dump(*wide, out_of().astype(np.float64)))
    assert [d.name for d in found.findings[0].departures] == ["arithmetic=float32"]


def test_what_cannot_be_told_apart_is_listed():
    one = [x[..., :1, :] if i == 0 else x for i, x in enumerate((QUERY, KEY, VALUE))]
    out = plain.attend(plain.Call(*one, SCALE, COLUMN[None] <= 0))["out"].astype(np.float32)
    found = diagnose(Dump(*one, out))
    (departure,) = found.findings[0].departures
    assert departure.name == "mask=causal,upper_left"
    assert "mask=first_1_keys" in departure.alike


def test_noise_is_explained_by_nothing_and_the_nearest_is_told():
    found = diagnose(Dump(QUERY, KEY, VALUE, RNG.normal(size=(2, 4, 5, 6)).astype(np.float32)))
    assert not found.explained
    assert len(found.findings) == 3
    assert found.findings[0].relative > 0.5


def test_many_rows_are_sampled_and_the_last_is_among_them():
    query, key, value = (RNG.normal(size=(3, 2, 400, 4)).astype(np.float32) for _ in range(3))
    seen = np.arange(400) <= np.arange(400)[:, None]
    out = plain.attend(plain.Call(query, key, value, 0.5, seen))["out"].astype(np.float32)
    found = diagnose(Dump(query, key, value, out))
    assert found.looked_at == "125 of 400 query rows"
    assert [d.name for d in found.findings[0].departures] == ["mask=causal"]


def test_shapes_that_are_no_attention_are_refused():
    with pytest.raises(UsageError, match="no attention in any layout"):
        diagnose(Dump(QUERY, KEY[..., :5], VALUE, out_of()))
    with pytest.raises(UsageError, match=r"mask \(3, 2\); .* a mask or bias that broadcasts to"):
        diagnose(Dump(QUERY, KEY, VALUE, out_of(), mask=np.ones((3, 2))))


def test_heads_are_split_beside_each_other_or_interleaved():
    joined = np.arange(24).reshape(1, 2, 12)
    assert split_heads(joined, 3)[0, 0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert split_heads(joined, 3, interleaved=True)[0, 0].tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    with pytest.raises(UsageError, match="cannot be split into 5 heads"):
        split_heads(joined, 5)


# Files


def test_dumps_of_every_kind_are_read(tmp_path):
    np.save(tmp_path / "q.npy", QUERY)
    np.savez(tmp_path / "all.npz", query=QUERY, key=KEY)
    save_file({"attn.key": KEY}, tmp_path / "k.safetensors")
    assert np.array_equal(read_dump(f"{tmp_path}/q.npy", "query"), QUERY)
    assert np.array_equal(read_dump(f"{tmp_path}/all.npz", "key"), KEY)
    assert np.array_equal(read_dump(f"{tmp_path}/all.npz:query", "value"), QUERY)
    assert np.array_equal(read_dump(f"{tmp_path}/k.safetensors", "key"), KEY)


def test_two_bytes_without_a_meaning_are_bfloat16(tmp_path):
    array = QUERY.astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "q.npy", array)
    found = read_dump(f"{tmp_path}/q.npy", "query")
    assert found.dtype == array.dtype
    assert np.array_equal(found.view(np.int16), array.view(np.int16))


@pytest.mark.torch
def test_tensors_of_pytorch_are_read_without_executing_anything(tmp_path):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(QUERY).bfloat16()
    torch.save({"query": tensor, "key": torch.from_numpy(KEY)}, tmp_path / "all.pt")
    assert read_dump(f"{tmp_path}/all.pt", "query").dtype == ml_dtypes.bfloat16
    torch.save(torch.nn.Linear(2, 3), tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"not readable as \.pt"):
        read_dump(f"{tmp_path}/model.pt", "query")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("q.txt", r"known are \.npy, \.npz, \.safetensors, \.pt"),
        ("gone.npy", "there is no such file"),
        ("objects.npy", "not readable as .npy"),
        ("torn.npy", "not readable as .npy"),
        ("torn.safetensors", "not readable as .safetensors"),
        ("two.npz", "no array `query`; it holds a, b"),
        ("words.npy", "is no real number or boolean"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path, name, words):
    (tmp_path / "q.txt").write_text("1 2 3")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.save(tmp_path / "whole.npy", QUERY)
    (tmp_path / "torn.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:100])
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    np.savez(tmp_path / "two.npz", a=QUERY, b=KEY)
    np.save(tmp_path / "words.npy", np.array(["a"]))
    with pytest.raises(UsageError, match=words):
        read_dump(f"{tmp_path}/{name}", "query")


# Stages


def departing(function, **arguments):
    group, case = made(**arguments)
    found = list(stages(group, case, UserFunction("mine", function), "float64"))
    first = first_departure(found)
    return None if first is None else first.name


def attend(query, key, value, *, mask=None, bias=None, scale=None, softcap=None, sinks=None, switches=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return plain.attend(plain.Call(query, key, value, scale, mask, bias, softcap, sinks), switches)["out"]


def with_switches(**fields):
    def function(query, key, value, *, mask=None, bias=None, scale=None, softcap=None, sinks=None):
        known = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        return attend(query, key, value, **known, switches=Switches(**fields))

    return function


EVERYTHING = {
    "inputs": {
        **arrays(),
        "mask": np.tile(np.array([[True, False, True, True, False, True, True]]), (3, 1)),
        "bias": BIAS[:3].astype(np.float32),
        "sinks": np.array([0.5, -1.0, 2.0, 0.0], np.float32),
    },
    "mask": {"rule": "dense"},
    "bias": {"rule": "dense"},
    "softcap": 1.5,
    "sinks": "sinks",
}


@pytest.mark.parametrize(
    ("function", "first"),
    [
        (attend, None),
        (with_switches(softmax="base_2"), "softmax(scaled)"),
        (with_switches(heads="tile"), "softmax(scaled)"),
        (with_switches(cap="after_bias"), "softmax(biased)"),
        (with_switches(fill="zero"), "softmax(masked)"),
        (with_switches(sink="ignored"), "weights"),
        (lambda query, key, value, **known: attend(query, key, value, **known)[..., ::-1, :], "softmax(scaled)"),
    ],
)
def test_the_first_stage_that_departs_is_named(function, first):
    assert departing(function, **EVERYTHING) == first


def test_stages_that_are_given_are_compared_as_they_are():
    def function(query, key, value):
        scores = wrong.logits(query, key) * 1.01
        weights = wrong.softmax(scores)
        return {"out": weights @ value, "weights": weights, "stage.scaled": scores}

    group, case = made(inputs=arrays(key_heads=4))
    found = list(stages(group, case, UserFunction("mine", function), "float64"))
    assert [stage.how for stage in found if stage.name == "stage.scaled"] == ["given"]
    assert first_departure(found).name == "stage.scaled"


def test_an_implementation_that_raises_has_no_stages():
    group, case = made()
    found = list(stages(group, case, UserFunction("mine", lambda query, key, value: 1 / 0), "float64"))
    assert first_departure(found) is None
    assert {stage.why_not for stage in found} == {"ZeroDivisionError: division by zero"}


# The command


def command(*arguments):
    return CliRunner().invoke(app, ["diagnose", *(str(argument) for argument in arguments)])


def test_the_command_names_the_stage():
    done = command("tests.conformance.wrong:mask_zero_fill", "article-causal-dense-mask")
    assert done.exit_code == 1
    assert "softmax(scaled)    same" in done.stdout
    assert "the first stage that departs is `softmax(masked)`" in done.stdout
    assert "expected [1. 0. 0. 0. 0. 0.]" in done.stdout
    assert command("numpy", "article-causal-layer").exit_code == 0


def test_the_command_explains_dumps(tmp_path):
    np.savez(tmp_path / "all.npz", query=QUERY, key=KEY, value=VALUE, out=out_of(mask=COLUMN <= ROW + 2))
    given = [part for name in ("query", "key", "value", "out") for part in (f"--{name}", tmp_path / "all.npz")]
    done = command(*given)
    assert done.exit_code == 0
    assert "explained by `mask=causal,lower_right`, layout BHLD" in done.stdout
    assert "a key is visible up to the query's own, the last query at the last key" in done.stdout
    unexplained = command(*given[:-2], "--out", f"{tmp_path}/all.npz:query")
    assert unexplained.exit_code == 1
    assert "nothing that was tried explains the output" in unexplained.stdout


def test_the_command_splits_heads(tmp_path):
    joined = [np.swapaxes(x, 1, 2).reshape(2, x.shape[2], -1) for x in (QUERY, KEY, VALUE, out_of())]
    for name, array in zip(("query", "key", "value", "out"), joined, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    given = [part for name in ("query", "key", "value", "out") for part in (f"--{name}", tmp_path / f"{name}.npy")]
    done = command(*given, "--heads", "4,2")
    assert done.exit_code == 0, done.stdout
    assert "explained by `output=heads_joined`, layout BLHD" in done.stdout
    assert command(*given, "--heads", "many").exit_code == 2


@pytest.mark.parametrize("arguments", [(), ("numpy",), ("--query", "q.npy")])
def test_the_command_says_what_it_needs(arguments):
    done = command(*arguments)
    assert done.exit_code == 2
    assert "diagnose needs an implementation and a case, or --query --key --value --out" in " ".join(
        done.stderr.split()
    )
