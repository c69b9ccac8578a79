"""Conversations to prompts: Jinja templates as Hugging Face's models bring them, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    names: Mapping[str, Any],
) -> str:
    """
    Write a conversation as a template says.

    Parameters
    ----------
    template : str
        The Jinja template.
    messages : sequence of mapping
        The conversation.
    add_generation_prompt : bool
        Whether to end with the beginning of the assistant's turn.
    names : mapping of str to Any
        What else the template may ask for, such as ``"bos_token"``.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If the template refuses the messages, or fails.
    ImportError
        If the ``jinja2`` package is missing.
    """
    environment = _environment()
    try:
        prompt: str = environment.from_string(template).render(
            {
                **names,
                "messages": messages,
                "add_generation_prompt": add_generation_prompt,
                "tools": None,
                "documents": None,
            }
        )
    # A template is a program: it may fail in any way.
    except Exception as error:
        raise ValueError(f"the chat template refuses the messages: {error}") from error
    return prompt


def _environment() -> Any:
    try:
        from jinja2 import TemplateError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportError(
            "A chat template needs the jinja2 package: pip install 'pytensor-rope[checkpoints]'."
        ) from error

    class Generation(Extension):
        """The tag that marks the assistant's text for training, which changes nothing here."""

        tags = {"generation"}  # noqa: RUF012, as Jinja declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own filter escapes for HTML.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
