"""Recording the vectors with PyTorch. Only this package and the adapters import torch, and only when called."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from conformance.cases import Group, worst_errors
from conformance.record.draft import Draft, record_case


@dataclass(frozen=True)
class GroupDraft:
    """The drafts of one group."""

    name: str
    title: str
    drafts: tuple[Draft, ...]


def group_drafts() -> tuple[GroupDraft, ...]:
    """Return everything that is recorded, in the order of the index."""
    from conformance.record import article_layers, article_words, groups
    from conformance.record.article import article_tensors
    from conformance.record.portable import portable_torch

    portable_torch()
    t = article_tensors()
    return (
        GroupDraft("article-embedding", "Embedding", tuple(article_words.embedding(t))),
        GroupDraft("article-projections", "Unnormalised weights", tuple(article_words.projections(t))),
        GroupDraft("article-attention-weights", "Attention weights", tuple(article_words.attention_weights(t))),
        GroupDraft("article-self-attention", "Self-attention", tuple(article_layers.self_attention(t))),
        GroupDraft("article-multi-head", "Multi-head attention", tuple(article_layers.multi_head(t))),
        GroupDraft("article-cross-attention", "Cross-attention", tuple(article_layers.cross_attention(t))),
        GroupDraft("article-causal", "Causal self-attention", tuple(article_layers.causal(t))),
        *(GroupDraft(*each) for each in groups.group_drafts()),
    )


def record(drafts: Iterable[GroupDraft], step: Callable[[], None] = lambda: None) -> tuple[Group, ...]:
    """Compute truths, PyTorch's own errors and wrong variants of every draft; `step` is called after each case.

    Raises:
        RecordError: two sources of a truth disagree, or the article's own lines give something else.
    """
    return tuple(_record_group(group, step) for group in drafts)


def _record_group(group: GroupDraft, step: Callable[[], None]) -> Group:
    from conformance.record.portable import stamp

    cases = []
    for draft in group.drafts:
        cases.append(record_case(group.name, draft))
        step()
    return Group(group.name, group.title, stamp(), worst_errors(tuple(cases)), tuple(cases))
