"""What the cases of a group share, and the shapes that a question is asked in."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from conformance.record.ask import Ask, Size

RuleOf = Callable[[Size], Any]


@dataclass(frozen=True)
class Profile:
    """A shape of a call, and what else it brings along."""

    words: str
    size: Size
    more: dict[str, Any] = field(default_factory=dict)


DENSE = {"rule": "dense"}
PROFILES = {
    "wide": Profile("fewer queries than keys", Size(3, 5, 4, 3, 2, 2)),
    "tall": Profile("more queries than keys", Size(6, 4, 4, 5, 2, 2)),
    "square": Profile(
        "as many queries as keys, the output alone", Size(5, 5, 3, 4, 3, 3), {"outputs": "out", "gradients": False}
    ),
    "grouped": Profile("two query heads share a key head", Size(4, 6, 4, 3, 4, 2)),
    "multi-query": Profile("all query heads share one key head, two batch items", Size(3, 7, 4, 5, 3, 1, (2,))),
    "batch": Profile("a batch, with weights", Size(5, 4, 3, 6, 2, 2, (2,)), {"outputs": "out lse weights"}),
    "plain": Profile("plain (L, D) arrays, with weights", Size(4, 7, 5, 3), {"outputs": "out weights"}),
    "blhd": Profile("layout (..., L, H, D), grouped heads", Size(3, 6, 5, 4, 4, 2, (2,)), {"layout": "BLHD"}),
    "biased": Profile("beside a bias", Size(4, 5, 4, 3, 2, 2), {"bias": DENSE}),
    "capped": Profile("with a soft cap and sinks", Size(5, 6, 4, 3, 3, 3), {"softcap": 1.5, "sinks": True}),
    "sunk": Profile(
        "with sinks, and a gradient through lse", Size(3, 4, 6, 5, 2, 1), {"sinks": True, "lse_cotangent": True}
    ),
    "tangent": Profile("with tangents", Size(4, 5, 3, 2, 2, 2), {"tangents": True, "lse_cotangent": True}),
    "forward": Profile(
        "grouped heads, the output alone", Size(5, 7, 4, 3, 6, 3), {"outputs": "out", "gradients": False}
    ),
    "long": Profile("33 keys, beyond a tile of 32", Size(5, 33, 4, 2, 2, 1)),
}


@dataclass(frozen=True)
class Theme:
    """A group: its name, its question, why it is asked and what a failure means."""

    name: str
    title: str
    why: str
    failure: str
    reports: str = ""
    prefer: str = ""
    loud: float = 1.0

    def ask(self, suffix: str, words: str, size: Size, **more: Any) -> Ask:
        """Return one case; `words` says what is particular about it."""
        reports = more.pop("reports", self.reports)
        shared = {"reports": reports, "prefer": self.prefer, "loud": self.loud, **more}
        return Ask(
            f"{self.name}-{suffix}",
            f"{self.title}: {words}",
            f"{self.why} Here: {words}.",
            self.failure,
            size,
            **shared,
        )

    def over(self, names: str, rule: RuleOf | None, prefix: str = "", words: str = "", **more: Any) -> Iterator[Ask]:
        """Yield a case for each profile, masked by `rule`."""
        for name in names.split():
            profile = PROFILES[name]
            mask = {} if rule is None else {"mask": rule(profile.size)}
            said = f"{words}, {profile.words}" if words else profile.words
            yield self.ask(prefix + name, said, profile.size, **{**profile.more, **mask, **more})


Themed = tuple[Theme, Iterable[Ask]]
