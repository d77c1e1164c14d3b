"""A model: one GGUF file, loaded, with its tokenizer and chat template."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.cache_policy import CachePolicy, policy_calls
from expertree.device import device_backend, several_devices_text
from expertree.errors import InvalidRequestError, ModelFormatError, UnsupportedError
from expertree.expert_record import Costs, ExpertRecord, load_record, record_path, save_record
from expertree.generation import Generation, TextOptions, run_generation
from expertree.kv_cache import cache_types
from expertree.memory_size import parse_budget
from expertree.profile.recording import DEFAULT_EVENTS, Profiling
from expertree.sampling import SamplingParams
from expertree.session import Session, new_session_facts, to_ids
from expertree.speculation import (
    Drafting,
    DraftLimits,
    Predictor,
    Selector,
    speculation_from,
)
from expertree.text import ChatTemplate, ReasoningForm, Tokenizer

_MOST_CONTEXT = 2**27  # as in cpp/engine/session.cpp
_RENDERING_NAMES = frozenset(("self", "tokenizer", "messages", "tools"))  # arguments of ChatTemplate's own


class Model:
    """A language model loaded from a GGUF file (the first part of a split one).

    Args:
        path: the file.
        threads: worker threads; 0 takes one per core. The result never depends on it.
        ram: memory for expert weights. "auto" keeps all that leave room for a session of n_ctx tokens and for the
            system (a tenth of what is free, 256 MiB to 1 GiB); "all" keeps all or refuses; a size such as "6GiB" or a
            number of bytes is never exceeded. Experts that are not in memory are read when a token needs them. The
            result never depends on it.
        policy: which experts stay when not all do: "auto", a name of `policy_names()`, or a `CachePolicy`.
        record: remember how often experts are used, and what they cost, for the next start: a path, True for a file in
            the cache folder, False for no. Read when the model is loaded, written by `save_record`.
        vram: GPU memory for the model, the buffers that running it takes included: what every token needs first (the
            matrices of attention, feed-forward parts and head, the KV cache of one session), then experts. 0 for none;
            "auto" takes what is free less an eighth, at most 512 MiB, and nothing without a GPU; "all" or a size as for
            ram: then a GPU must be there. What is on the GPU runs there, other experts where that takes less time. The
            result never depends on it.
        isa: instruction set by name (scalar, avx2, avx512, neon, dotprod); None takes the best here. All give the same
            bits.
        n_ctx: context length of sessions; None takes the model's own, at most 4096.
        cache_type: format in which sessions keep keys and values: "f32", "f16" (half the memory) or "q8_0" (a quarter),
            or a pair (keys, values). Each is rounded once, when it is written, so that the exactness contract holds
            with any; the text differs between them. Latent attention (deepseek2) keeps keys only.
        activations: "int8" (the exactness contract) or "f32" (reference mode: no rounding of activations, slow).
        pre: pre-tokenizer name to force when the file's own is unknown.
        reserve: bytes that ram="auto" leaves free beside, for what sessions draft with (`drafting_memory`).
        progress: called with (bytes read, bytes in all) while loading.

    Raises:
        ModelFormatError, UnsupportedError, OutOfMemoryError, DeviceError, InvalidRequestError: see their messages.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int = 0,
        ram: str | int = "auto",
        policy: str | CachePolicy = "auto",
        record: bool | str | os.PathLike[str] = False,
        vram: str | int = 0,
        isa: str | None = None,
        n_ctx: int | None = None,
        cache_type: str | tuple[str, str] = "f32",
        activations: str = "int8",
        pre: str | None = None,
        reserve: int = 0,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        budget = parse_budget(ram)
        vram_budget = parse_budget(vram, "vram")
        if activations not in ("int8", "f32"):
            raise InvalidRequestError(f"activations is {activations!r}; expected 'int8' or 'f32'")
        key_type, value_type = cache_types(cache_type)
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidRequestError(f"path is {path!r}; expected the path of a GGUF file")
        if not isinstance(threads, int) or not -(2**31) <= threads < 2**31:
            raise InvalidRequestError(f"threads is {threads!r}; expected a whole number, 0 for one per core")
        if policy == "values":
            raise InvalidRequestError("policy 'values' is what a CachePolicy object goes by; give the object itself")
        self.path = Path(path)
        self._pre = pre
        self._step_costs: _core.CostProfile | None = None  # what sessions that drafted have learned
        self._selector_states: dict[str, list[float]] = {}
        self._sessions: dict[int, dict[str, Any]] = {}  # what profiles say of them, the latest ones
        self._record_path = _record_path(record, self.path)
        saved = _saved_record(record, self._record_path)
        self._earlier_record = saved
        try:
            self._core = _core.Model.load(
                os.fspath(path),
                threads,
                isa or "",
                activations == "f32",
                progress,
                expert_budget=budget.size_bytes,
                leave_margin=budget.leave_margin,
                n_ctx=0 if n_ctx is None else _checked_context(n_ctx),
                policy="values" if isinstance(policy, CachePolicy) else policy,
                profile=[] if saved is None else saved.rates.ravel().tolist(),
                cache_type_k=key_type,
                cache_type_v=value_type,
                reserve_bytes=reserve,
                vram_budget=vram_budget.size_bytes,
                vram_auto=vram_budget.leave_margin,
                device=device_backend(),
            )
        except TypeError as error:
            raise InvalidRequestError(
                f"isa={isa!r}, policy={policy!r}, reserve={reserve!r}, progress={progress!r}: a wrong type; see "
                "help(expertree.Model)"
            ) from error
        self._policy_calls = policy_calls(policy, self._core)
        if self._core.experts is None and budget.size_bytes is not None:
            warnings.warn(f"{self.path} has no experts: ram={ram!r} has no effect", stacklevel=2)
        if self.gpu and self.gpu["device"]["devices"] > 1:
            warnings.warn(several_devices_text(self.gpu["device"]), stacklevel=2)
        self._asked_context = n_ctx or 0
        self.n_ctx = int(self._core.default_context) if n_ctx is None else n_ctx

    # Facts about the model.

    @property
    def arch(self) -> str:
        return str(self._core.arch)

    @property
    def n_layers(self) -> int:
        return int(self._core.n_layers)

    @property
    def n_experts(self) -> int:
        """Routed experts per MoE layer; 0 for a dense model."""
        return int(self._core.n_experts)

    @property
    def n_experts_used(self) -> int:
        return int(self._core.n_experts_used)

    @property
    def n_vocab(self) -> int:
        return int(self._core.n_vocab)

    @property
    def n_ctx_train(self) -> int:
        """The context that the model was trained for."""
        return int(self._core.n_ctx_train)

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self._core.isa)

    @property
    def threads(self) -> int:
        return int(self._core.threads)

    @property
    def cache_types(self) -> tuple[str, str]:
        """Formats of keys and of values in sessions."""
        keys, values = self._core.cache_types
        return str(keys), str(values)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """All keys of the file."""
        return dict(self._core.file.metadata())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Built from the file's own vocabulary.

        Raises:
            UnsupportedError: unknown tokenizer or pre-tokenizer (`pre=` forces one).
        """
        try:
            return Tokenizer.from_metadata(self.metadata, pre=self._pre)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.path}: {error}") from error
        except ModelFormatError as error:
            raise ModelFormatError(f"{self.path}: {error}") from error

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template.

        Raises:
            UnsupportedError: the file has none.
        """
        if self.tokenizer.chat_template is None:
            raise UnsupportedError(
                f"{self.path} has no chat template; use generate with a plain prompt, or a chat-tuned model"
            )
        return ChatTemplate.from_tokenizer(self.tokenizer)

    # Its experts.

    @property
    def experts(self) -> dict[str, Any]:
        """What the expert pager holds and did: bytes, slots, hits, misses, reads, waiting; {} for a dense model.

        budget_bytes is what slots take, all_bytes what all experts would take, least_bytes the smallest `ram` that
        works. uses = device_hits (on the GPU when a step asked) + hits (in memory then) + late (being read) + misses.
        policy_seconds: what a `CachePolicy` took.
        """
        pager = self._core.experts
        if pager is None:
            return {}
        stats = dict(pager.stats)
        if self._policy_calls is not None:
            stats["policy_seconds"] = self._policy_calls.seconds
        return stats

    @property
    def gpu(self) -> dict[str, Any]:
        """What of the model the GPU holds and did; {} when nothing is kept there (`gpu_note` says why).

        budget_bytes is what is taken there: dense_bytes by what every token needs and its buffers, fixed_bytes by what
        running experts takes, and the experts' slots. least_bytes is the smallest `vram` that works, all_bytes what the
        whole model could use. parts: a dict for each part and place: part, place ("GPU" or "RAM"), n (layers, or
        experts) of the model's `of`, bytes, note. products: of dense matrices, and attentions, run there. With a KV
        cache there, kv_cells: positions that it holds, of all sessions; kv_cells_free: that no session has. With
        experts there, fetches: experts copied to be run at once; offers: copied for later; runs: experts run there.
        """
        return self._core.gpu or {}

    @property
    def gpu_note(self) -> str:
        """Why vram="auto" keeps nothing on a GPU; "" when it does, or was not asked to."""
        return str(self._core.vram_note)

    def memory(self, n_ctx: int | None = None) -> dict[str, int]:
        """Bytes that the model and one session of n_ctx tokens take: expert_bytes (slots), weight_bytes (all other
        weights), kv_bytes, scratch_bytes (of a prompt's chunks and a tree's logits; once per model); drafting_bytes,
        weights that its sessions draft with at present, one copy for all of them (`drafting_memory` by purpose; a
        session's own drafting state is in its `stats`); on a GPU vram_bytes."""
        length = self.n_ctx if n_ctx is None else _checked_context(n_ctx)
        return {
            "expert_bytes": int(self.experts.get("budget_bytes", 0)),
            "weight_bytes": int(self._core.weight_bytes),
            "kv_bytes": int(self._core.kv_bytes(length)),
            "scratch_bytes": int(self._core.scratch_bytes(length)),
            "drafting_bytes": sum(self.drafting_memory.values()),
            "vram_bytes": int(self.gpu.get("budget_bytes", 0)),
        }

    @property
    def drafting_memory(self) -> dict[str, int]:
        """Bytes of the heads, blocks and models that sessions draft with at present, by purpose and file."""
        return {str(purpose): int(size_bytes) for purpose, size_bytes in self._core.drafting_parts}

    def load_experts(self) -> None:
        """Waits until all experts that have room are in memory, and on the GPU. They come by themselves; this is for
        measurements.

        Raises:
            DeviceError: one of them cannot be read, or the GPU fails.
        """
        self._core.load_experts()

    def save_record(self, path: str | os.PathLike[str] | None = None) -> None:
        """Saves how often experts are used and what they cost, for the next start (`record=`).

        Raises:
            DeviceError: the disk does not take it; an earlier record stays as it was.
            InvalidRequestError: no path here, and none when the model was loaded.
        """
        target = path if path is not None else self._record_path
        if target is None:
            raise InvalidRequestError("save_record needs a path, or a model that was loaded with record=True")
        pager = self._core.experts
        if pager is not None:
            save_record(target, self._record_of(pager))

    def _record_of(self, pager: _core.ExpertPager) -> ExpertRecord:
        n_rows, shape = pager.stats["rows"], (pager.n_layers, pager.n_experts)
        rates, reuse = (np.array(values, np.float32).reshape(shape) for values in (pager.profile(), pager.reuse()))
        record = ExpertRecord(rates, Costs(**pager.costs), n_rows, reuse)
        return record if self._earlier_record is None else record.going_on_from(self._earlier_record, n_rows)

    # Running it.

    def logits(self, tokens: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Logits of every position in a fresh context: float32 (n_tokens, n_vocab)."""
        logits: npt.NDArray[np.float32] = self._evaluate(tokens, routing=False)[0]
        return logits

    def routing(
        self, tokens: Sequence[int] | npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Experts chosen in a fresh context.

        Returns:
            ids int32 and weights float32, both (n_moe_layers, n_tokens, n_experts_used), best expert first.
        """
        ids, weights = self._evaluate(tokens, routing=True)[1]
        return ids, weights

    def _evaluate(self, tokens: Sequence[int] | npt.NDArray[Any], routing: bool) -> tuple[Any, Any]:
        ids = to_ids(tokens)
        # The context that was asked for at loading can decide how positions turn (rotary factors of long contexts).
        session = self.session(n_ctx=max(1, ids.size, self._asked_context))
        logits, routed, _ = session._core.evaluate(ids, np.arange(-1, ids.size - 1, dtype=np.int32), routing)
        return logits, routed

    def session(
        self,
        *,
        n_ctx: int | None = None,
        draft: Drafting | Sequence[Drafting] | None = None,
        select: str | Selector | None = None,
        predict: str | Predictor | None = None,
        draft_nodes: int = 32,
        draft_depth: int = 4,
        draft_top_k: int = 8,
        **sampling: Any,
    ) -> Session:
        """A new session.

        Args:
            n_ctx: positions that the sequence may grow to; None takes the model's `n_ctx`.
            draft: who proposes tokens that are verified several at a time: "auto" (the head that expertree ships for
                its own model, for others "ngram"), another name of `drafter_names()` ("eagle3" and "medusa" without a
                file are the shipped ones), or a `Drafter`; None or "none" for nobody. Several, as "eagle3+ngram" or a
                list, have their trees merged. The text never depends on it.
            select: which of them are verified: "residency", another name of `selector_names()`, or a `Selector`.
            predict: which experts they are expected to use: "last", another name of `predictor_names()` ("head" without
                a file is the shipped one, which "auto" has), a `Predictor`, or "none".
            draft_nodes, draft_depth, draft_top_k: how large a tree may be; see `DraftLimits`.
            sampling: as in `generate`.
        """
        speculation = speculation_from(
            draft, select, predict, DraftLimits(draft_nodes, draft_depth, draft_top_k), lambda: self.metadata
        )
        length = self.n_ctx if n_ctx is None else _checked_context(n_ctx)
        return Session(self, length, sampling_params(sampling), speculation)

    def profile(self, *, max_events: int = DEFAULT_EVENTS) -> Profiling:
        """Records where time and bytes go while a `with` block runs.

        >>> with model.profile() as run:
        ...     model.generate("Once upon a time", draft="auto")
        >>> print(run.profile.summary())

        Calls that begin before the block or end after it are not in it. One profile of a model at a time.

        Args:
            max_events: pieces of the time line to keep; sums go on beyond them.

        Raises:
            InvalidRequestError: another profile runs (when the block is entered).
        """
        return Profiling(self, max_events)

    def _ask_policy(self) -> None:
        """Before a prefill or a step."""
        if self._policy_calls is not None:
            self._policy_calls.update()

    def _session_facts(self, session: int) -> dict[str, Any]:
        """What a profile says of a session, by its id; one that is gone and was not seen by a profile has no name."""
        return dict(self._sessions.get(session, new_session_facts(self.n_ctx)))

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 64,
        stop: str | Sequence[str] | None = None,
        ignore_eos: bool = False,
        stream: Callable[[str], object] | None = None,
        **settings: Any,
    ) -> Generation:
        """Continues a prompt.

        Args:
            prompt: text (encoded with the model's own start token, control-token text taken as such), or token ids
                used as they are; a file whose tokenizer is missing or unknown takes and gives ids only, without stop
                and stream, and no end-of-text token ends it.
            max_tokens: at most so many; None goes on until the text or the context ends.
            stop: strings that end the answer; they are not part of it.
            ignore_eos: go on after an end-of-text token.
            stream: called with each piece of text as soon as it is certain.
            settings: temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty,
                penalty_last_n, logit_bias, seed (see `SamplingParams`); draft, select, predict, draft_nodes,
                draft_depth, draft_top_k (see `session`).

        Raises:
            InvalidRequestError: an empty prompt, one longer than the context, an id outside the vocabulary, or a
                setting out of range.
        """
        options = text_options(max_tokens, stop, ignore_eos=ignore_eos)
        ids = self.tokenizer.encode(prompt, add_special=True, parse_special=True) if isinstance(prompt, str) else prompt
        session = self.session(**settings)
        try:
            tokenizer = self.tokenizer
        except UnsupportedError:  # reached with ids only: text has been encoded above
            tokenizer = None
        return run_generation(session, tokenizer, to_ids(ids).tolist(), options, stream)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        stream: Callable[[str], object] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Generation:
        """Answers a conversation: [{"role": "user", "content": "..."}, ...], through the file's chat template.

        Control tokens come from the template alone, never from a message's text. Reasoning inside <think> tags,
        and gpt-oss's analysis and commentary channels, are returned apart from the answer.
        """
        ids, reasoning = encode_messages(self, messages, tools, template_args)
        options = text_options(max_tokens, stop, reasoning=reasoning)
        return run_generation(self.session(**settings), self.tokenizer, ids, options, stream)


def _record_path(record: bool | str | os.PathLike[str], model: Path) -> Path | None:
    if isinstance(record, bool):
        return record_path(model) if record and model.is_file() else None
    if not isinstance(record, (str, os.PathLike)):
        raise InvalidRequestError(f"record is {record!r}; expected a path, True for one in the cache folder, or False")
    return Path(record).absolute()  # it is written later, perhaps from another folder


def _saved_record(record: bool | str | os.PathLike[str], path: Path | None) -> ExpertRecord | None:
    if path is None:
        return None
    try:
        return load_record(path)
    except ModelFormatError:
        if record is not True:
            raise
        return None  # our own file in the cache folder: the next save replaces it


def drafter_names() -> list[str]:
    """Names that `Model.session(draft=...)` takes; those that need an argument as NAME:ARGUMENT."""
    return [f"{name}:{argument}" if argument else str(name) for name, argument, _ in _core.drafter_infos()]


def selector_names() -> list[str]:
    """Names that `Model.session(select=...)` takes; what may follow a colon is their own argument."""
    return [str(name) for name, _, _ in _core.selector_infos()]


def predictor_names() -> list[str]:
    """Names that `Model.session(predict=...)` takes, besides "none"; those that need an argument as NAME:ARGUMENT."""
    return [f"{name}:{argument}" if argument else str(name) for name, argument, _ in _core.predictor_infos()]


def policy_names() -> list[str]:
    """Cache policies that `Model(policy=...)` takes, besides "auto". "pinned" needs a record of earlier use."""
    return [str(name) for name in _core.policy_names() if name != "belady"]


def _checked_context(n_ctx: int) -> int:
    if not isinstance(n_ctx, int) or not 1 <= n_ctx <= _MOST_CONTEXT:
        raise InvalidRequestError(f"n_ctx (--ctx) is {n_ctx!r}; expected a whole number from 1 to {_MOST_CONTEXT:,}")
    return n_ctx


def sampling_params(values: Mapping[str, Any]) -> SamplingParams:
    """Checks names; the core checks values."""
    try:
        return SamplingParams(**{k: v for k, v in values.items() if not (k == "logit_bias" and v is None)})
    except TypeError as error:
        raise InvalidRequestError(
            f"unknown setting in {sorted(values)}; known: {sorted(SamplingParams.__dataclass_fields__)}"
        ) from error


def text_options(
    max_tokens: int | None,
    stop: str | Sequence[str] | None,
    *,
    ignore_eos: bool = False,
    reasoning: ReasoningForm | None = None,
) -> TextOptions:
    """Checks and gathers what `generate` and `chat` are given."""
    if max_tokens is not None and (not isinstance(max_tokens, int) or not 0 <= max_tokens < 2**31):
        raise InvalidRequestError(
            f"max_tokens is {max_tokens!r}; expected a whole number from 0 to 2^31 - 1, or None for no limit"
        )
    stops = [stop] if isinstance(stop, str) else [*stop] if isinstance(stop, Sequence) else []
    if (not stops and stop) or not all(isinstance(s, str) and s for s in stops):
        raise InvalidRequestError(f"stop is {stop!r}; expected strings that are not empty")
    return TextOptions(max_tokens, stops, ignore_eos, reasoning)


def encode_messages(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_args: Mapping[str, Any] | None = None,
) -> tuple[list[int], ReasoningForm]:
    """Token ids of a rendered conversation, and how its answer marks reasoning."""
    if template_args is not None and not isinstance(template_args, Mapping):
        raise InvalidRequestError(f"template_args is {template_args!r}; expected a mapping from names to values")
    for name in template_args or ():
        if not isinstance(name, str) or name in _RENDERING_NAMES:
            raise InvalidRequestError(
                f"template_args has {name!r}; expected names that the template reads, such as 'enable_thinking'; "
                "messages and tools are arguments of their own"
            )
    template, extra = model.chat_template, dict(template_args or {})
    ids = template.encode_chat(model.tokenizer, messages, tools=tools, **extra)
    prompt = template.render(messages, tools=tools, **extra)
    return ids, ReasoningForm(prompt, model.tokenizer.speaks_channels)
