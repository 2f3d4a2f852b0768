"""Attention layers, one file a variant: frozen dataclasses of arrays, for the arrays of any library."""

from .causal_self_attention import CausalSelfAttention
from .cross_attention import CrossAttention
from .grouped_query import GroupedQueryAttention
from .headed import KeysValues
from .layer import Layer, Normal, Parameter, Uniform
from .linear import Linear
from .multi_head import MultiHeadAttentionWrapper
from .multi_head_attention import MultiHeadAttention
from .norm import RMSNorm
from .projected_attention import ProjectedAttention
from .self_attention import SelfAttention

__all__ = [
    "CausalSelfAttention",
    "CrossAttention",
    "GroupedQueryAttention",
    "KeysValues",
    "Layer",
    "Linear",
    "MultiHeadAttention",
    "MultiHeadAttentionWrapper",
    "Normal",
    "Parameter",
    "ProjectedAttention",
    "RMSNorm",
    "SelfAttention",
    "Uniform",
]
