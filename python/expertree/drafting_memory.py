"""What drafting takes of memory, reckoned from the files alone: to leave room for it, and to show it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expertree import _core
from expertree.errors import InvalidRequestError, ModelFormatError
from expertree.inspect_model import describe
from expertree.shipped_drafting import draft_name, predictor_name

_FLOAT = 4
_PIECE_ROWS = 512  # of a prompt, as sessions run it


@dataclass(frozen=True)
class DraftingPart:
    """name: as `Model.session(draft=)` or `predict=` has it. weight_bytes: once for all sessions of a model.
    state_bytes: of each session, when its context is full."""

    name: str
    weight_bytes: int
    state_bytes: int


def drafting_parts(
    draft: str | None, predict: str | None, target: str | os.PathLike[str], n_ctx: int
) -> list[DraftingPart]:
    """What these take beside the model. Drafters that need no file take next to nothing and are left out.

    Args:
        draft, predict: names as for `Model.session`, "auto" too.
        target: the model's file. n_ctx: of a session.

    Raises:
        InvalidRequestError: a drafter that needs a file has none. And what opening the files raises.
    """
    if draft is None:
        return []
    reader = _core.GgufReader(os.fspath(target))

    def metadata() -> dict[str, Any]:
        name = "general.name"
        return {name: reader.value(name)} if name in reader.keys else {}

    drafter = draft_name(draft, metadata)
    if drafter is None:
        return []
    parts = []
    for name in _core.split_drafters(drafter):
        kind, _, path = name.partition(":")
        if kind == "mtp":
            parts.append(_mtp(reader, n_ctx))
        elif kind in _OF_FILES:
            if not path:
                raise InvalidRequestError(f"drafter {name!r}: {kind} needs an argument, {kind}:FILE")
            parts.append(_OF_FILES[kind](name, path, reader, n_ctx))
    predictor = predictor_name(predict, drafter, metadata) or "none"
    kind, _, path = predictor.partition(":")
    if kind == "head" and path:
        parts.append(DraftingPart(predictor, _tensor_bytes(_core.GgufReader(path)), 0))
    return parts


def drafting_bytes(draft: str | None, predict: str | None, target: str | os.PathLike[str], n_ctx: int) -> int:
    """Of one session, all together; see `drafting_parts`."""
    return sum(part.weight_bytes + part.state_bytes for part in drafting_parts(draft, predict, target, n_ctx))


def _tensor_bytes(reader: Any) -> int:
    return sum(int(tensor.size_bytes) for tensor in reader.tensors)


def _integer(reader: Any, key: str) -> int:
    value = reader.value(key) if key in reader.keys else 0
    return value if isinstance(value, int) else 0


def _architecture(reader: Any, path: str) -> str:
    if "general.architecture" not in reader.keys:
        raise ModelFormatError(f"{path}: key 'general.architecture' is missing; this file holds no model to draft with")
    return str(reader.value("general.architecture"))


def _extent(tensor: Any, dimension: int, path: str) -> int:
    if len(tensor.shape) <= dimension or tensor.shape[dimension] < 1:
        raise ModelFormatError(f"{path}: tensor {tensor.name!r} has shape {list(tensor.shape)}; the file is damaged")
    return int(tensor.shape[dimension])


def _eagle3(name: str, path: str, target: Any, n_ctx: int) -> DraftingPart:
    head = _core.GgufReader(path)
    width = _integer(head, "eagle3.embedding_length")
    n_heads = max(1, _integer(head, "eagle3.attention.head_count"))
    n_kv_heads = _integer(head, "eagle3.attention.head_count_kv") or n_heads
    head_dims = [_integer(head, f"eagle3.attention.{kind}_length") or width // n_heads for kind in ("key", "value")]
    # Keys and values, a state per position, and the target's features of a piece of a prompt.
    features = next((_extent(t, 0, path) for t in head.tensors if t.name == "fc.weight"), 0)
    state = _FLOAT * (n_ctx * (n_kv_heads * sum(head_dims) + width) + _PIECE_ROWS * features)
    return DraftingPart(name, _tensor_bytes(head), state)


def _medusa(name: str, path: str, target: Any, n_ctx: int) -> DraftingPart:
    heads = _core.GgufReader(path)
    tensors = {tensor.name: tensor for tensor in heads.tensors}
    rows = 0
    if "draft_ids" in tensors:  # the rows of the output that it has are copied side by side
        of_target = {tensor.name: tensor for tensor in target.tensors}
        output = of_target.get("output.weight", of_target.get("token_embd.weight"))
        if output is not None:
            rows = _extent(tensors["draft_ids"], 0, path) * output.size_bytes // _extent(output, 1, target.paths[0])
    return DraftingPart(name, _tensor_bytes(heads) + rows, 0)


def _model(name: str, path: str, target: Any, n_ctx: int) -> DraftingPart:
    draft = _core.GgufReader(path)
    trained = _integer(draft, f"{_architecture(draft, path)}.context_length")
    need = describe(path, min(n_ctx, trained or n_ctx)).need
    return DraftingPart(
        name, need.other_weight_bytes + need.expert_bytes, (need.kv_cache_bytes or 0) + need.recurrent_bytes
    )


def _mtp(target: Any, n_ctx: int) -> DraftingPart:
    """The block behind the last layer of the target's own file."""
    path = target.paths[0]
    architecture = _architecture(target, path)
    n_blocks = _integer(target, f"{architecture}.block_count")
    block = f"blk.{n_blocks - max(1, _integer(target, f'{architecture}.nextn_predict_layers'))}."
    tensors = {tensor.name: tensor for tensor in target.tensors if tensor.name.startswith(block)}
    keys_and_values = [tensors[name] for kind in "kv" if (name := f"{block}attn_{kind}.weight") in tensors]
    kv_width = sum(_extent(tensor, 1, path) for tensor in keys_and_values)
    width = _integer(target, f"{architecture}.embedding_length")
    return DraftingPart("mtp", sum(int(t.size_bytes) for t in tensors.values()), _FLOAT * n_ctx * (kv_width + width))


_OF_FILES = {"eagle3": _eagle3, "medusa": _medusa, "model": _model}


def part_label(name: str) -> str:
    """A part's name for people: its file without the folder."""
    kind, colon, path = name.partition(":")
    return f"{kind}{colon}{Path(path).name}" if path else kind
