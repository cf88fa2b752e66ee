"""Keys of a checkpoint that do not fit, with the reason."""

from __future__ import annotations


class ExplainedKey(str):
    """A missing or unexpected key that says more in torch's error message, and is the key everywhere else.

    Modules do not learn whether ``load_state_dict`` is strict, so they cannot raise themselves.
    """

    reason: str

    def __new__(cls, key: str, reason: str) -> ExplainedKey:
        explained = super().__new__(cls, key)
        explained.reason = reason
        return explained

    def __format__(self, spec: str) -> str:
        return f"{str.__str__(self)} ({self.reason})"


def explain(keys: list[str], before: int, reason: str | dict[str, str]) -> None:
    """Give the keys behind the first `before` their reason; one reason for all stands at the last of them."""
    for i in range(before, len(keys)):
        found = reason.get(keys[i]) if isinstance(reason, dict) else reason if i == len(keys) - 1 else None
        if found is not None and not isinstance(keys[i], ExplainedKey):
            keys[i] = ExplainedKey(keys[i], found)
