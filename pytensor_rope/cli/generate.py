"""``pytensor-rope generate``: a model's text, written as it is made."""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytensor_rope.cli.arguments import PROGRAM
from pytensor_rope.cli.display import in_mebibytes, resident_memory, status_line
from pytensor_rope.cli.interrupts import exit_code
from pytensor_rope.cli.sources import STANDARD_INPUT, compiling, open_model, read_text

if TYPE_CHECKING:
    from pytensor_rope import Model, Stream


def generate(options: argparse.Namespace) -> int:
    """
    Stream the text to standard output.

    Parameters
    ----------
    options : argparse.Namespace
        The arguments of ``pytensor-rope generate``.

    Returns
    -------
    code : int
        0 when the text came to its end; 130 or 143 when a signal ended it.
    """
    prompt = _read_prompt(options.prompt)
    model = open_model(options.model, options.dtype)
    chat = _wants_chat(model, options)
    rendered = _render_chat(model, prompt, options.system) if chat else prompt
    # A rendered chat has its special tokens already.
    prompt_ids = model.tokenizer.encode(rendered, add_special=not chat)
    stream = model.compile(
        options.backend,
        sinks=options.sinks,
        window=options.window,
        positions=options.positions,
    )

    meter = Meter()
    code = 0
    try:
        _write_text(model, stream, prompt_ids, chat, options, meter)
    except KeyboardInterrupt as interrupt:
        code = exit_code(interrupt)
    _write("\n")
    print(f"{PROGRAM}: {meter.summary()}", file=sys.stderr)
    return code


class Meter:
    """Counts tokens, and times them from when it is made."""

    def __init__(self) -> None:
        self.n_token = 0
        self._start = self._steady = self._last = time.monotonic()

    def count(self) -> None:
        """Count one token, made now."""
        self._last = time.monotonic()
        self.n_token += 1
        if self.n_token == 2:
            self._steady = self._last

    def rate(self) -> float:
        """
        Return tokens a second; 0 if not known yet.

        The first token waits for the prompt and the second for a function of its own to be compiled, so
        the others are counted.
        """
        elapsed = self._last - self._steady
        return (self.n_token - 2) / elapsed if self.n_token > 2 and elapsed > 0 else 0.0

    def summary(self) -> str:
        """Return the count, the seconds and the rate in words."""
        plural = "" if self.n_token == 1 else "s"
        seconds = time.monotonic() - self._start
        rate = f"; {self.rate():.1f} tokens/s once it ran" if self.rate() else ""
        return f"{self.n_token:,} token{plural} in {seconds:.1f} s{rate}"


def _read_prompt(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise ValueError("no prompt: give PROMPT, or pipe it into standard input.")
    if argument is None or argument == STANDARD_INPUT:
        prompt = re.sub(r"\r?\n\Z", "", read_text(STANDARD_INPUT))
    else:
        prompt = argument
    if not prompt:
        raise ValueError("the prompt is empty.")
    # Bytes of an argument that are not UTF-8 reach Python as lone surrogates.
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise ValueError("the prompt is not UTF-8 text.")
    return prompt


def _wants_chat(model: Model, options: argparse.Namespace) -> bool:
    """Return whether to chat: as asked, else if the model can."""
    has_template = bool(model.tokenizer.chat_template)
    if options.chat and not has_template:
        raise ValueError(f"{options.model} has no chat template; continue the text with --raw.")
    chat = has_template if options.chat is None else bool(options.chat)
    if options.system is not None and not chat:
        raise ValueError("--system needs --chat, with a model that has a chat template.")
    return chat


def _render_chat(model: Model, prompt: str, system: str | None) -> str:
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    rendered: str = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return rendered


def _write_text(
    model: Model,
    stream: Stream,
    prompt_ids: list[int],
    chat: bool,
    options: argparse.Namespace,
    meter: Meter,
) -> None:
    """Write each piece of the text when its token is made, under a status line."""
    stop = tuple(model.tokenizer.eos_ids) if chat else ()
    slots = options.sinks + options.window
    token_ids = stream.generate(
        prompt_ids,
        options.tokens,
        temperature=_given(options.temperature, model.generation.temperature) or 0.0,
        top_k=_given(options.top_k, model.generation.top_k),
        top_p=_given(options.top_p, model.generation.top_p),
        seed=options.seed,
        stop=stop,
    )
    decoder = model.tokenizer.stream_decoder()
    _prepare_standard_output()
    with status_line() as status:
        for token_id in _after_the_prompt(token_ids, len(prompt_ids), options.backend):
            meter.count()
            if token_id not in stop:
                _write(decoder.push(token_id))
            if meter.n_token == 1:
                status.update(lambda: f"compiling for single tokens on {options.backend}")
            else:
                status.update(lambda: _describe_status(stream.position, slots, meter.rate()))
        _write(decoder.flush())


def _given[Value](option: Value | None, default: Value | None) -> Value | None:
    """Return the option if it was given, else the model's default, which may be None too."""
    return default if option is None else option


def _after_the_prompt(token_ids: Iterator[int], n_prompt: int, backend: str) -> Iterator[int]:
    """Yield the token ids; until the first one comes, show that the prompt is being read."""
    with compiling(backend, f"reading the prompt ({n_prompt:,} tokens)"):
        first = next(token_ids, None)
    if first is not None:
        yield first
        yield from token_ids


def _describe_status(position: int, slots: int, rate: float) -> str:
    memory = resident_memory()
    parts = [
        f"position {position:,}",
        f"{rate:.1f} tokens/s",
        *([f"{in_mebibytes(memory)} resident"] if memory is not None else []),
        f"cache {min(position, slots):,}/{slots:,} slots",
    ]
    return " | ".join(parts)


def _prepare_standard_output() -> None:
    """Make standard output UTF-8, with the model's own line ends; a terminal keeps its encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="replace", newline="\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
