"""The policy in training, as a player of environments.

Invariants: an episode's tokens are never made again from text. Each answer extends the row of the one before;
if the template cannot do that, a new row begins. Each draw is a function of (seed, episode, turn), and does
not depend on the rest of the batch.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from onward.envs.rollouts import Action, Conversation, Episode
from onward.lm import paths
from onward.lm.chat import Chat
from onward.lm.model import LanguageModel, TokenSampler
from onward.lm.request import Sample, SampleRequest
from onward.lm.tokens import Call, rows_from_calls
from onward.lm.trajectories import Trajectory
from onward.training.job.estimate import prefix_bytes

CONTEXT_LENGTH = "context_length"
"""Reason for ending an episode: prompt and answer no longer fit."""


@dataclass(frozen=True)
class SampledAnswer:
    """Origin of an answer: the call, the whole row after it, and the messages that it answered."""

    call: Call
    ids: list[int]
    messages: list[dict[str, Any]]
    finished: bool


class Actor:
    """Plays with ``adapter`` of ``policy`` at its current weights; changed weights need a new actor."""

    def __init__(
        self,
        policy: LanguageModel,
        adapter: str | None,
        thread: Executor,
        *,
        max_tokens: int,
        temperature: float,
        seed: str,
        for_training: bool,
        batch: int = 64,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes the sampler. ``for_training``: the episodes are trained on, so no setting may distort
        log-probs. ``check`` is called between two tokens and may raise, which ends the run."""
        self._chat = Chat(policy.tokenizer)
        self._held: TokenSampler | None = paths.sampler(
            policy,
            max_batch=batch,
            max_context=policy.shape.max_positions,
            prefix_cache_bytes=prefix_bytes(batch, policy.bytes_per_token),
        )
        self._adapter, self._max_tokens, self._temperature = adapter, max_tokens, temperature
        self._seed, self._check, self._for_training = seed, check, for_training
        self._thread = thread
        self.tokens = 0
        """Tokens sampled so far."""

    def close(self) -> None:
        """Releases the caches at once. Reference cycles of a finished run keep this object alive until a
        garbage collection, which sees a few small objects and not the hundreds of megabytes behind them.
        """
        self._thread.submit(lambda: None).result()  # an abandoned call may still run
        self._held = None

    @property
    def _sampler(self) -> TokenSampler:
        if self._held is None:
            raise RuntimeError("a closed actor plays no more")
        return self._held

    async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._act, list(conversations))

    def _act(self, conversations: list[Conversation]) -> list[Action]:
        prompts = [self._prompt(one) for one in conversations]
        actions: list[Action | None] = [None] * len(prompts)
        for at, (one, (context, start, _)) in enumerate(zip(conversations, prompts, strict=True)):
            ids = start + context
            if len(ids) + self._max_tokens > self._sampler.max_context:
                actions[at] = Action("", stopped=CONTEXT_LENGTH)
                continue
            self._sampler.submit(
                SampleRequest(
                    request_id=str(at),
                    prompt_ids=ids,
                    max_new_tokens=self._max_tokens,
                    temperature=self._temperature,
                    stop_ids=self._chat.stop_ids,
                    adapter=self._adapter,
                    seed=_seed(self._seed, one),
                    for_training=self._for_training,
                )
            )
        while self._sampler.busy:
            self._check()
            for sample in self._sampler.step():
                at = int(sample.request_id)
                actions[at] = self._action(conversations[at], prompts[at], sample)
        return [action for action in actions if action is not None]

    def _prompt(self, one: Conversation) -> tuple[list[int], list[int], str | None]:
        """Returns (tokens to add, tokens already present, the generation that they end with)."""
        messages: list[dict[str, Any]] = [dict(message) for message in one.messages]
        if one.actions:
            drawn: SampledAnswer = one.actions[-1].sampling
            delta = self._chat.extend(drawn.ids, drawn.messages, messages, drawn.finished)
            if delta is not None:
                return delta, drawn.ids, drawn.call.generation_id
        return self._chat.render(messages), [], None

    def _action(
        self, one: Conversation, prompt: tuple[list[int], list[int], str | None], sample: Sample
    ) -> Action:
        context, start, continues = prompt
        self.tokens += len(sample.token_ids)
        call = Call(
            prompt_ids=context,
            token_ids=sample.token_ids,
            logprobs=sample.logprobs,
            temperature=self._temperature,
            generation_id=f"{one.key}-{one.turn}",
            continues=continues,
        )
        drawn = SampledAnswer(
            call,
            [*start, *context, *sample.token_ids],
            [dict(message) for message in one.messages],
            sample.finish_reason == "stop",
        )
        return Action(self._chat.text(sample.token_ids), drawn)


def trajectory(episode: Episode, *, per_turn: bool) -> Trajectory:
    """Builds the trajectory of an episode. Unscored stays unscored; attempts at one task share a group.
    ``per_turn`` gives each turn's own reward to its answer, for algorithms that can place it."""
    calls = [turn.action.sampling.call for turn in episode.turns]
    rows = rows_from_calls(calls)
    rewards = [turn.reward for turn in episode.turns] if per_turn and episode.is_scored and rows else None
    return Trajectory(
        rows=rows,
        reward=episode.reward,
        group=(episode.task.task_id, episode.panel_hash),
        task_type=episode.task.environment,
        success=episode.success,
        turn_rewards=rewards,
    )


def _seed(seed: str, one: Conversation) -> int:
    digest = hashlib.sha256(f"{seed}/{one.key}/{one.turn}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
