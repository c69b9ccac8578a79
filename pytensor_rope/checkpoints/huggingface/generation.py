"""How a checkpoint's makers generate text with it: ``generation_config.json``."""

from collections.abc import Mapping
from typing import Any

from pytensor_rope.checkpoints.base import CheckpointError, GenerationDefaults
from pytensor_rope.checks import not_negative, positive_number, true_or_false, whole_number


def generation_defaults(values: Mapping[str, Any]) -> GenerationDefaults:
    """
    Read what is to be chosen from, and what ends a text.

    Parameters
    ----------
    values : mapping
        The contents of ``generation_config.json``.

    Returns
    -------
    GenerationDefaults

    Raises
    ------
    CheckpointError
        If a value has the wrong type or is out of its range.
    """
    given = {key: value for key, value in values.items() if value is not None}
    try:
        # As transformers does it: the likeliest token without do_sample, and a temperature of 1 with it.
        temperature = not_negative("temperature", given.get("temperature", 1.0))
        samples = true_or_false("do_sample", given.get("do_sample", False))
        says_nothing = not given.keys() & {"do_sample", "temperature"}
        # transformers writes 0 for no limit.
        top_k = whole_number("top_k", given.get("top_k", 0), least=0) or None
        top_p = _probability("top_p", given["top_p"]) if "top_p" in given else None
        return GenerationDefaults(
            eos_ids=token_ids("eos_token_id", given.get("eos_token_id")),
            temperature=None if says_nothing else temperature if samples else 0.0,
            top_k=top_k,
            top_p=top_p,
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"generation_config.json: {error}") from error


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Return one token id, several, or none, without repeats."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(whole_number(name, token_id, least=0) for token_id in ids))


def _probability(name: str, value: Any) -> float:
    number = positive_number(name, value)
    if number > 1:
        raise ValueError(f"{name} must be at most 1; got {value!r}.")
    return number
