"""The committed vectors: linted, and what our own implementations give for them."""

import dataclasses

import numpy as np
import pytest

from conformance import VECTORS
from conformance.adapters import load
from conformance.cases import Coincidence, Expected, Variant
from conformance.format import read_groups
from conformance.lint import lint, lint_case
from conformance.runner import PASS, ask, run

QUICK = {"jax": "article-attention-second-word", "jax-jit": "article-causal-layer"}


@pytest.fixture(scope="module")
def groups():
    return read_groups()


@pytest.fixture(scope="module")
def by_id(groups):
    return {case.id: (group, case) for group in groups for case in group.cases}


def assert_passes_everything(row):
    assert row.status == PASS, (row.case.id, row.dtype, row.note, row.verdict)
    if not row.case.valid:
        return
    assert {output.name for output in row.verdict.outputs} == set(row.case.expected), (row.case.id, row.lacking)


@pytest.mark.slow  # CI lints the vectors by the command
def test_no_complaints(groups):
    assert lint(groups) == []


@pytest.mark.slow  # CI asks all by the command
def test_attention_np_gives_every_output_of_every_case(groups):
    for row in run(groups, [load("numpy")]):
        assert_passes_everything(row)


@pytest.mark.parametrize(("implementation", "case_id"), QUICK.items())
def test_attention_jax_gives_every_output(by_id, implementation, case_id):
    pytest.importorskip("jax", reason="JAX is not installed; pip install 'array-attention[jax]'")
    assert_passes_everything(ask(*by_id[case_id], load(implementation), "float32"))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["jax", "jax-jit", "jax-vmap"])
def test_attention_jax_gives_every_output_of_the_article(implementation):
    pytest.importorskip("jax", reason="JAX is not installed; pip install 'array-attention[jax]'")
    adapter = load(implementation)
    for group in read_groups(names=["article-"]):
        for case in group.cases:
            assert_passes_everything(ask(group, case, adapter, "float32"))


@pytest.mark.torch
def test_pytorch_gives_every_output_of_the_article():
    for row in run(read_groups(names=["article-"]), [load("torch")]):
        assert_passes_everything(row)


def test_every_tensor_of_the_article_is_there(groups):
    names = {value.article for group in groups for case in group.cases for value in case.expected.values()}
    wanted = """embedded_sentence query_2 key_2 value_2 queries keys values omega_24 omega_2 attention_weights_2
        context_vector_2 sa(embedded_sentence) mha(embedded_sentence) crossattn(first_input,second_input) attn_scores
        attn_weights mask_simple masked_simple row_sums masked_simple_norm masked"""
    assert set(wanted.split()) <= {name.replace(" ", "") for name in names if name}


def test_gradients_are_recorded_for_every_layer_input(groups):
    layers = [case for group in groups for case in group.cases if "layer" in case.features]
    assert {case.op for case in layers} == {
        "SelfAttention",
        "MultiHeadAttentionWrapper",
        "CrossAttention",
        "CausalSelfAttention",
    }
    for case in layers:
        assert set(case.gradients()) == set(case.inputs)


def complaints(by_id, **changes):
    group, case = by_id["article-causal-rule"]
    return list(lint_case(group, dataclasses.replace(case, **changes)))


def test_lint_refuses_a_variant_that_is_the_truth(by_id):
    _, case = by_id["article-causal-rule"]
    same = Variant("same", "the same", {"out": case.expected["out"].truth + 1e-9})
    (complaint,) = complaints(by_id, variants=(*case.variants, same))
    assert complaint.startswith("cannot tell `expected` from `same`: ")
    assert complaint.endswith("tolerances apart, 10 needed")


def test_lint_refuses_two_variants_that_are_one(by_id):
    _, case = by_id["article-causal-rule"]
    twin = dataclasses.replace(case.variants[0], name="twin")
    assert complaints(by_id, variants=(*case.variants, twin))[0].startswith("cannot tell `scale=1` from `twin`")


def test_lint_accepts_a_declared_coincidence_and_refuses_one_that_is_none(by_id):
    _, case = by_id["article-causal-rule"]
    twin = dataclasses.replace(case.variants[0], name="twin")
    declared = (Coincidence(("scale=1", "twin"), "twins"),)
    assert complaints(by_id, variants=(*case.variants, twin), coincidences=declared) == []
    (complaint,) = complaints(by_id, coincidences=(Coincidence(("scale=1", "mask=none"), "no"),))
    assert complaint.startswith("declares that `scale=1` and `mask=none` coincide, and they are")
    (complaint,) = complaints(by_id, coincidences=(Coincidence(("scale=1", "nobody"), "no"),))
    assert complaint == "declares a coincidence of ['nobody'], which it does not have"


def test_lint_refuses_an_expectation_of_zeros(by_id):
    _, case = by_id["article-causal-rule"]
    zeros = {"out": Expected(np.zeros_like(case.expected["out"].truth))}
    assert "cannot tell `expected` from `out=zeros`" in complaints(by_id, expected=zeros)[0]


def test_lint_refuses_inputs_that_a_dtype_rounds(by_id):
    assert "`query` is not exact in float16" in complaints(by_id, dtypes=("float16",))


def test_lint_refuses_a_case_without_a_reason_or_with_a_default(by_id):
    _, case = by_id["article-causal-rule"]
    assert complaints(by_id, why=" ") == ["says no `why`"]
    parameters = {name: value for name, value in case.parameters.items() if name != "softcap"}
    assert complaints(by_id, parameters=parameters) == ["leaves ['softcap'] to a default"]


def test_lint_refuses_an_id_used_twice_and_another_worst_error(groups):
    doubled = dataclasses.replace(groups[0], worst={"float32": 1.0})
    found = lint([groups[0], doubled], VECTORS)
    assert f"{groups[0].cases[0].id}: the id is used twice" in found
    assert any("`pytorch_error` {'float32': 1.0} is not the worst of its cases" in line for line in found)
