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


def group_drafts(names: Iterable[str] = (), drafted: bool = True) -> tuple[GroupDraft, ...]:
    """Return what is recorded, in the order of the index: everything, or the groups whose names begin with a word.

    Without `drafted` the groups are empty.
    """
    wanted = [each for each in _groups() if _wanted(each[0], tuple(names))]
    return tuple(GroupDraft(name, title, tuple(make()) if drafted else ()) for name, title, make in wanted)


def _wanted(name: str, names: tuple[str, ...]) -> bool:
    return not names or name.startswith(names)


def _groups() -> Iterable[tuple[str, str, Callable[[], Iterable[Draft]]]]:
    from conformance.record import article_layers, article_words, groups
    from conformance.record.article import article_tensors
    from conformance.record.portable import portable_torch

    portable_torch()
    t = article_tensors()
    return (
        ("article-embedding", "Embedding", lambda: article_words.embedding(t)),
        ("article-projections", "Unnormalised weights", lambda: article_words.projections(t)),
        ("article-attention-weights", "Attention weights", lambda: article_words.attention_weights(t)),
        ("article-self-attention", "Self-attention", lambda: article_layers.self_attention(t)),
        ("article-multi-head", "Multi-head attention", lambda: article_layers.multi_head(t)),
        ("article-cross-attention", "Cross-attention", lambda: article_layers.cross_attention(t)),
        ("article-causal", "Causal self-attention", lambda: article_layers.causal(t)),
        *groups.group_drafts(),
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
