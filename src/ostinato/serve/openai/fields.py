"""Fields of OpenAI's requests that this server has no use for: accepted, or answered 400 by name.

``docs/openai.md`` is this table in words (a test compares them). What stands neither here nor in
``schemas.py`` is refused by name as unknown: nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostinato.errors import InputError, RefusedItem


@dataclass(frozen=True, slots=True)
class Rule:
    """``values`` are accepted besides null; with ``kinds``, any value of these types is."""

    why: str
    values: tuple[Any, ...] = ()
    kinds: tuple[type, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Types count: ``false`` is not 0."""
        if value is None or type(value) in self.kinds:
            return True
        return any(type(value) is type(known) and value == known for known in self.values)

    def accepted_text(self) -> str:
        """What is accepted, in words."""
        if self.kinds:
            return "any"
        return ", ".join(_as_json(value) for value in self.values) or "null"


def _as_json(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("'", '"') if not isinstance(value, str) else f'"{value}"'


NO_TOOLS = "no tools are called"
NO_GRAMMAR = "text is not constrained"
TEXT_ONLY = "text is what is answered"

BOTH: Mapping[str, Rule] = {
    "user": Rule("says nothing to the model", kinds=(str,)),
    "logit_bias": Rule("single tokens are not biased", ({},)),
    "min_tokens": Rule("answers have no least length", (0,)),
    "priority": Rule("requests are served in order of arrival", (0,)),
    "skip_special_tokens": Rule("special tokens are left out of the text", (True,)),
    "use_beam_search": Rule("answers are sampled", (False,)),
    "length_penalty": Rule("answers are sampled", (1, 1.0)),
    "include_stop_str_in_output": Rule("stop strings are cut", (False,)),
    "echo": Rule("the prompt is not repeated", (False,)),
    "regex": Rule(NO_GRAMMAR),
    "ebnf": Rule(NO_GRAMMAR),
    "structured_outputs": Rule(NO_GRAMMAR),
    "lora_path": Rule("adapters are not supported"),
    "best_of": Rule("every answer is sent; see n", (1,)),
}
CHAT: Mapping[str, Rule] = {
    **BOTH,
    "audio": Rule(TEXT_ONLY),
    "modalities": Rule(TEXT_ONLY, (["text"],)),
    "function_call": Rule(NO_TOOLS, ("none",)),
    "functions": Rule(NO_TOOLS, ([],)),
    "tools": Rule(NO_TOOLS, ([],)),
    "tool_choice": Rule(NO_TOOLS, ("none",)),
    "parallel_tool_calls": Rule(NO_TOOLS),
    "response_format": Rule(NO_GRAMMAR, ({"type": "text"},)),
    "metadata": Rule("says nothing to the model", kinds=(dict,)),
    "safety_identifier": Rule("says nothing to the model", kinds=(str,)),
    "prompt_cache_key": Rule("equal beginnings are found without a key", kinds=(str,)),
    "prompt_cache_options": Rule("the cache keeps what fits"),
    "prompt_cache_retention": Rule("the cache keeps what fits", ("in_memory",)),
    "moderation": Rule("nothing is moderated"),
    "prediction": Rule("answers are not predicted"),
    "reasoning_effort": Rule("the model does not reason apart", ("none",)),
    "service_tier": Rule("there is one tier", ("auto", "default")),
    "store": Rule("nothing is stored", (False,)),
    "verbosity": Rule("ask for it in the prompt", ("medium",)),
    "web_search_options": Rule("nothing is searched"),
    "add_generation_prompt": Rule("the assistant answers", (True,)),
    "continue_final_message": Rule("the assistant begins a new turn", (False,)),
    "chat_template": Rule("the checkpoint's template is used"),
    "chat_template_kwargs": Rule("the checkpoint's template is used as it is", ({},)),
    "mm_processor_kwargs": Rule("images are resized as the checkpoint says", ({},)),
}
COMPLETION: Mapping[str, Rule] = {**BOTH, "suffix": Rule("text is not inserted")}


def take_unused(fields: dict[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """``fields`` without those of ``rules``; ``RefusedItem`` for a value that is not accepted."""
    for name, rule in rules.items():
        if name in fields and not rule.accepts(fields[name]):
            accepted = rule.accepted_text()
            only = "leave it out" if accepted == "null" else f"only {accepted} is accepted"
            raise RefusedItem(name, InputError(f"[unsupported-field] {rule.why}; {only}"))
    return {name: value for name, value in fields.items() if name not in rules}


def table(rules: Mapping[str, Rule]) -> list[tuple[str, str, str]]:
    """Field, accepted values, and why no others; for the document."""
    return sorted((name, rule.accepted_text(), rule.why) for name, rule in rules.items())
