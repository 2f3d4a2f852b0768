"""Attention layers, one file a variant: frozen dataclasses of arrays, for the arrays of any library."""

from .additive import AdditiveAttention
from .bloom import BloomAttention
from .causal_self_attention import CausalSelfAttention
from .cross_attention import CrossAttention
from .differential import DifferentialAttention, lambda_init_of
from .gpt2 import Conv1D, GPT2Attention
from .grouped_query import GroupedQueryAttention
from .headed import KeysValues
from .latent import LatentAttention, Latents
from .layer import Layer, Normal, Parameter, Uniform
from .linear import Linear
from .linear_attention import LinearAttention
from .linear_forms import LinearState
from .multi_head import MultiHeadAttentionWrapper
from .multi_head_attention import MultiHeadAttention
from .norm import RMSNorm
from .projected_attention import ProjectedAttention
from .self_attention import SelfAttention
from .t5 import T5Attention

__all__ = [
    "AdditiveAttention",
    "BloomAttention",
    "CausalSelfAttention",
    "Conv1D",
    "CrossAttention",
    "DifferentialAttention",
    "GPT2Attention",
    "GroupedQueryAttention",
    "KeysValues",
    "LatentAttention",
    "Latents",
    "Layer",
    "Linear",
    "LinearAttention",
    "LinearState",
    "MultiHeadAttention",
    "MultiHeadAttentionWrapper",
    "Normal",
    "Parameter",
    "ProjectedAttention",
    "RMSNorm",
    "SelfAttention",
    "T5Attention",
    "Uniform",
    "lambda_init_of",
]
