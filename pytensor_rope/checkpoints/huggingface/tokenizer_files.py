"""The tokenizer of a Hugging Face directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytensor_rope.checkpoints.base import CheckpointError
from pytensor_rope.checkpoints.huggingface.generation import token_ids
from pytensor_rope.checkpoints.huggingface.json_files import read_bounded, read_json, read_text
from pytensor_rope.tokenizer import Tokenizer, plain_errors, surround

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(
    folder: Path, config: Mapping[str, Any], vocab_size: int, eos_ids: tuple[int, ...] = ()
) -> tuple[Tokenizer | None, str]:
    """
    Read ``tokenizer.json`` and what ``tokenizer_config.json`` says about it.

    Parameters
    ----------
    folder : Path
        The directory.
    config : mapping
        The contents of ``config.json``, which may name the tokens that begin and end a text.
    vocab_size : int
        Number of the model's token ids.
    eos_ids : tuple of int, optional
        The tokens that end a text, as ``generation_config.json`` says. Default is those of ``config``, or the
        tokenizer's.

    Returns
    -------
    tokenizer : Tokenizer or None
        None if there is no ``tokenizer.json``.
    why_none : str
        Why there is none, empty if there is one.

    Raises
    ------
    ValueError
        If a file is damaged, the files contradict each other, or ask for something not implemented.
    ImportError
        If the ``tokenizers`` package is missing.
    """
    if not (folder / "tokenizer.json").is_file():
        return None, _why_none(folder)
    backend = _read_backend(folder / "tokenizer.json")
    settings = _settings(folder)
    names = _named_tokens(settings)
    _recognize(backend, names)

    bos_id = _id_of(backend, names, "bos_token")
    eos_id = _id_of(backend, names, "eos_token")
    _add_ends(backend, settings, bos_id, eos_id)
    if bos_id is None and "bos_token" not in settings:
        bos_id = next(iter(_ids_in_config("bos_token_id", config)), None)
    ends = eos_ids or _ids_in_config("eos_token_id", config) or (() if eos_id is None else (eos_id,))
    try:
        return Tokenizer(
            backend,
            vocab_size=vocab_size,
            bos_id=bos_id,
            eos_ids=ends,
            chat_template=_chat_template(folder, settings),
            template_names=names,
        ), ""
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(
            f"tokenizer.json: {error} Without this file the model loads, for token ids."
        ) from error


def _why_none(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            f"{folder} holds tokenizer.model and no tokenizer.json, which is what can be read. Write one "
            "with transformers: AutoTokenizer.from_pretrained(directory).save_pretrained(directory)."
        )
    return f"{folder} holds no tokenizer.json: copy it from where the model comes from."


def _read_backend(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError as error:
        raise ImportError(
            "A tokenizer needs the tokenizers package: pip install 'pytensor-rope[checkpoints]'."
        ) from error
    data = read_bounded(path)
    with plain_errors("tokenizer.json can't be read"):
        backend = Backend.from_buffer(data)
    # Both are for batches of texts of one length.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _settings(folder: Path) -> dict[str, Any]:
    """Return ``tokenizer_config.json``, with the tokens that older checkpoints name in another file."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    return settings


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special tokens by their names, as a chat template asks for them."""
    names: dict[str, Any] = {}
    for name in _NAMED_TOKENS:
        if settings.get(name) is not None:
            names[name] = _text_of(name, settings[name])
    for name in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(name)
        if isinstance(more, dict):
            names |= {key: _text_of(key, token) for key, token in more.items()}
        elif isinstance(more, list):
            names[name] = [_text_of(name, token) for token in more]
        elif more is not None:
            raise CheckpointError(f"tokenizer_config.json: {name} must be tokens; got {more!r}.")
    return names


def _text_of(name: str, token: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise CheckpointError(f"tokenizer_config.json: {name} must be a token; got {token!r}.")
    return content


def _recognize(backend: Any, names: Mapping[str, Any]) -> None:
    """Have the named tokens that are in the vocabulary recognized as special."""
    from tokenizers import AddedToken

    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    tokens = [token for value in names.values() for token in ([value] if isinstance(value, str) else value)]
    for token in dict.fromkeys(tokens):
        if token and token not in special and backend.token_to_id(token) is not None:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])


def _id_of(backend: Any, names: Mapping[str, Any], name: str) -> int | None:
    token_id: int | None = backend.token_to_id(names[name]) if name in names else None
    return token_id


def _ids_in_config(name: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        return token_ids(name, config.get(name))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from error


def _add_ends(backend: Any, settings: Mapping[str, Any], bos_id: int | None, eos_id: int | None) -> None:
    """Begin and end texts as the settings say, where ``tokenizer.json`` says something else."""
    before, behind = _ends(backend)
    wanted_before, wanted_behind = before, behind
    add_bos = _switch(settings, "add_bos_token", bos_id)
    add_eos = _switch(settings, "add_eos_token", eos_id)
    begins, ends = before[:1] == [bos_id], behind[-1:] == [eos_id]
    if add_bos is not None and add_bos != begins and bos_id is not None:
        wanted_before = [bos_id, *before] if add_bos else before[1:]
    if add_eos is not None and add_eos != ends and eos_id is not None:
        wanted_behind = [*behind, eos_id] if add_eos else behind[:-1]
    if (wanted_before, wanted_behind) != (before, behind):
        surround(backend, wanted_before, wanted_behind)


def _switch(settings: Mapping[str, Any], name: str, token_id: int | None) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"tokenizer_config.json: {name} must be true or false; got {value!r}.")
    if value and token_id is None:
        token = name.removeprefix("add_")
        raise CheckpointError(f"tokenizer_config.json: {name} is true, and no {token} is in the vocabulary.")
    return value


def _ends(backend: Any) -> tuple[list[int], list[int]]:
    """Return which tokens ``backend`` adds before and behind a text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel

    one_token = Backend(WordLevel({"a": 0}, unk_token="a")).encode("a")
    with plain_errors("tokenizer.json has a post_processor that fails"):
        encoding = backend.post_process(one_token, None, True)
        place = encoding.special_tokens_mask.index(0)
    return encoding.ids[:place], encoding.ids[place + 1 :]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    template = settings.get("chat_template")
    if template is None or isinstance(template, str):
        return template
    if not isinstance(template, list) or not all(_is_named_template(entry) for entry in template):
        raise CheckpointError("tokenizer_config.json: chat_template must be a string, or templates by name.")
    return {entry["name"]: entry["template"] for entry in template}.get("default")


def _is_named_template(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template"))
