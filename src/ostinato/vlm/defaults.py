"""What a checkpoint says of sampling, for requests that do not say it."""

from __future__ import annotations

from ostinato.errors import InputError, WeightsError
from ostinato.lm.contract import SamplingParams
from ostinato.weights.config import read_generation_config
from ostinato.weights.files import Files

_FIELDS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}
"""Those that both vLLM and SGLang take from it; neither asks ``do_sample``."""


def sampling_defaults(files: Files) -> SamplingParams:
    """``generation_config.json`` over the API's own. ``WeightsError`` names a wrong field."""
    found = {}
    for name, kind in _FIELDS.items():
        value = (read_generation_config(files) or {}).get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            raise WeightsError(
                f"{files.origin}: generation_config.json: {name} is {value!r}; expected a number"
            )
        found[name] = kind(value)
    try:
        return SamplingParams(**found)
    except InputError as error:
        raise WeightsError(f"{files.origin}: generation_config.json: {error}") from error
