"""Answers that the gateway recorded under a grammar: a policy gradient learns from them under their masks."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from job_world import Events, MakeJob
from scored_trajectories import KEY, freeze, sampling, task

from onward.errors import TrainingError
from onward.lm.answer_form import AnswerForm
from onward.lm.chat import Chat
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler, GrammarError
from onward.lm.policy import Policy
from onward.lm.request import Sample, SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.tiny import build_tiny
from onward.lm.token_bytes import TokenBytes
from onward.lm.tokens import TokenRow
from onward.redaction.trajectory import redact_trajectory
from onward.serving.engines.answer_options import state_once
from onward.training.data import admission, conversations, dataset, files, grammars
from onward.training.data.admission import AdmissionRules
from onward.training.data.report import DataReport
from onward.training.job import rows, worker
from onward.training.job.evaluation import weighable_attempts
from onward.training.job.replayed import MaskReplay

COLOURS = ["red", "green", "grey"]
TOOL = {
    "type": "function",
    "function": {
        "name": "paint",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": COLOURS}, "coats": {"enum": [1, 2, 3]}},
            "required": ["colour", "coats"],
            "additionalProperties": False,
        },
    },
}


def _with_word(word: str) -> dict[str, Any]:
    """A strict tool with one argument that may be this word alone."""
    parameters = {"type": "object", "properties": {"word": {"enum": [word]}}, "required": ["word"]}
    return {"type": "function", "function": {"name": "say", "strict": True, "parameters": parameters}}


class Painter:
    """A policy, the grammar of a forced call of ``paint``, and answers under it as an engine records them."""

    def __init__(self, folder: Path) -> None:
        corpus = ['{"tool_name": "paint", "tool_args": {"colour": "green", "coats": 3}}', "red grey"]
        self.folder = build_tiny(folder, corpus, vocab=300, hidden=32, layers=2, max_positions=512)
        self.policy = Policy.load(self.folder)
        self.chat = Chat(self.policy.tokenizer)
        self.compiler = GrammarCompiler(self.policy.tokenizer, self.policy.shape.vocab, self.chat.stop_ids)
        self.grammar: CompiledGrammar = self.compiler(
            AnswerForm([TOOL], must_call=True, parallel=False).grammar(self.chat.call_style, self.compiler)
        )
        self.prompt = self.chat.render([{"role": "user", "content": "Paint it."}])

    def sample(self, prompt: list[int], seed: int) -> Sample:
        """An answer with the masks that the sampler drew under, which no gateway records."""
        sampler = Sampler(self.policy, 1, 512)
        sampler.submit(
            SampleRequest(str(seed), prompt, 120, stop_ids=self.chat.stop_ids, seed=seed,
                          grammar=self.grammar, for_training=True)
        )  # fmt: skip
        while True:
            for one in sampler.step():
                return one

    def record(self, sample: Sample, **more: Any) -> dict[str, Any]:
        drawn = {"prompt_ids": self.prompt, "token_ids": sample.token_ids, "logprobs": sample.logprobs}
        return sampling(**{**drawn, "constraint": self.grammar.record, **more})

    @property
    def replay(self) -> MaskReplay:
        return MaskReplay.of_model(self.policy)


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Painter:
    torch.set_num_threads(1)
    return Painter(tmp_path_factory.mktemp("painter") / "model")


@pytest.fixture(scope="module")
def drawn(painter: Painter) -> list[Sample]:
    return [painter.sample(painter.prompt, seed) for seed in range(6)]


RULES = AdmissionRules({"d1": 0}, KEY)


def admitted(*records: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """The line of a trajectory with these records, as it is read from the frozen dataset."""
    made = admission.line(task("t", *records, **changes), RULES)
    assert not isinstance(made, str), made
    return json.loads(dataset.line_bytes(made))


def test_its_row_is_the_one_of_the_sampler_and_its_log_probs_are_the_learners(
    painter: Painter, drawn: list[Sample]
) -> None:
    for sample in drawn:
        line = admitted(painter.record(sample))
        assert list(line["grammars"]) == [line["calls"][0]["grammar"]] and "trains" not in line["calls"][0]
        (line,) = painter.replay.lines([line], DataReport())
        (row,) = rows.trajectory_of(line, _spec(), None).rows
        by_hand = TokenRow([], [], [])
        by_hand.extend(painter.prompt, sample.token_ids, sample.logprobs, sample.allowed)
        assert (row.ids, row.sampled, row.logprobs) == (by_hand.ids, by_hand.sampled, by_hand.logprobs)
        assert row.allowed == by_hand.allowed and row.trained == by_hand.trained
        assert 0 < len(row.trained) < len(sample.token_ids), "some of it is decided, the braces are not"
        start = len(painter.prompt)
        learners = painter.policy.logprobs([row])[0][start:].tolist()
        assert learners == pytest.approx(sample.logprobs, abs=1e-4)
        free = TokenRow(row.ids, row.sampled, row.logprobs)
        assert sum(painter.policy.logprobs([free])[0][start:].tolist()) < sum(sample.logprobs) - 10


def test_the_recorded_log_probs_are_those_of_the_answers_that_the_tool_has(
    painter: Painter, drawn: list[Sample]
) -> None:
    """Nine calls exist. Their probabilities, by the masks of each, sum to one; the recorded ones are among
    them."""
    said = {tuple(one.token_ids): sum(one.logprobs) for one in drawn}
    found: dict[tuple[int, ...], float] = {}
    for colour in COLOURS:
        for coats in (1, 2, 3):
            arguments = {"colour": colour, "coats": coats}
            text = json.dumps({"tool_name": "paint", "tool_args": arguments})
            for ids in _splits(painter, text):
                row = TokenRow([], [], [])
                row.extend(painter.prompt, ids, None, painter.grammar.replay(ids))
                found[tuple(ids)] = float(painter.policy.logprobs([row])[0][len(painter.prompt) :].sum())
    assert math.fsum(map(math.exp, found.values())) == pytest.approx(1.0, abs=1e-4)
    assert all(found[ids] == pytest.approx(value, abs=1e-3) for ids, value in said.items())


def _splits(painter: Painter, text: str) -> list[list[int]]:
    """Every sequence of tokens that the masks allow for this text, by a walk over all allowed tokens."""
    whole, open_ones, found = text.encode(), [([], b"")], []
    of = TokenBytes(painter.policy.tokenizer).of
    names = [of(token) for token in range(painter.policy.shape.vocab)]
    while open_ones:
        ids, so_far = open_ones.pop()
        constraint = painter.grammar.begin()
        for token in ids:
            constraint.advance(token)
        words = torch.zeros((painter.grammar.vocab + 31) // 32, dtype=torch.int32).numpy()
        constraint.mask(words)
        for token, name in enumerate(names):
            if not words[token // 32] >> token % 32 & 1:
                continue
            if token in painter.chat.stop_ids:
                found += [[*ids, token]] if so_far == whole else []
            elif name and whole.startswith(so_far + name):
                open_ones.append(([*ids, token], so_far + name))
    return found


def test_an_answer_that_continues_one_under_the_same_grammar_names_it_alone(
    painter: Painter, drawn: list[Sample]
) -> None:
    first, second = {"constraint": painter.grammar.record}, {"constraint": painter.grammar.record}
    known = state_once(first, frozenset())
    assert state_once(second, known) == known == {painter.grammar.record["hash"]}
    assert first["constraint"]["source"] and set(second["constraint"]) == {
        "kind", "hash", "engine", "fingerprint"
    }  # fmt: skip
    one = painter.record(drawn[0], generation_id="one")
    more = {"generation_id": "two", "continues": "one", "prompt_ids": [5, 6]}
    prompt = [*painter.prompt, *drawn[0].token_ids, 5, 6]
    sample = painter.sample(prompt, 9)
    line = admitted(one, painter.record(sample, **more, **second))
    (line,) = painter.replay.lines([line], DataReport())
    (row,) = rows.trajectory_of(line, _spec(), None).rows
    assert row.ids == [*prompt, *sample.token_ids]
    assert painter.policy.logprobs([row])[0][len(prompt) :].tolist() == pytest.approx(
        sample.logprobs, abs=1e-4
    )
    # Alone, the second names a grammar whose source is nowhere.
    alone = painter.record(sample, **{**more, **second, "continues": None})
    assert admission.line(task("t", alone), RULES) == "shaped_logits"
    # Another grammar under the same short hash is not taken for the stated one.
    other = {"constraint": {**second["constraint"], "fingerprint": "0" * 64}}
    line = admitted(one, painter.record(sample, **more, **other))
    assert [call.get("trains") for call in line["calls"]] == [None, False]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["constraint"].update(source='start: "red"'),
        lambda record: record["constraint"].update(fingerprint="0" * 64),
        lambda record: record.pop("constraint"),
    ],
)
def test_a_record_whose_grammar_was_changed_is_refused(
    painter: Painter, drawn: list[Sample], change: Any
) -> None:
    record = copy.deepcopy(painter.record(drawn[0]))
    change(record)
    assert admission.line(task("t", record), RULES) == "bad_signature"


@pytest.mark.parametrize(
    "more", [{"presence_penalty": 1.0}, {"frequency_penalty": 0.5}, {"logit_bias": {"7": 2.0}}]
)
def test_penalties_and_a_bias_leave_an_answer_untrained_with_a_grammar_or_without(
    painter: Painter, drawn: list[Sample], tmp_path: Path, more: dict[str, Any]
) -> None:
    for record in (painter.record(drawn[0], **more), sampling(**more)):
        assert admission.line(task("t", record), RULES) == "shaped_logits"
        line = admitted(record, sampling())
        assert [call.get("trains") for call in line["calls"]] == [False, None] and "grammars" not in line
    with pytest.raises(TrainingError, match="ask for answers without penalties and logit_bias"):
        freeze(tmp_path, [task(name, sampling(**more)) for name in ("a", "b")])


def test_a_grammar_of_another_server_has_no_masks_to_compute_again(painter: Painter) -> None:
    plain = sampling(constraint={"kind": "json_schema", "hash": "0" * 16})
    assert admission.line(task("t", plain), RULES) == "shaped_logits"


def test_text_methods_learn_from_the_tokens_without_masks(painter: Painter, drawn: list[Sample]) -> None:
    rules = AdmissionRules(None, KEY, text_is_enough=True)
    line = admission.line(task("t", painter.record(drawn[0], presence_penalty=1.0)), rules)
    assert not isinstance(line, str) and "grammars" not in line
    assert "grammar" not in line["calls"][0] and "trains" not in line["calls"][0]


@pytest.mark.parametrize("form", [
    AnswerForm([_with_word("Zürich")], must_call=True),
    AnswerForm([_with_word("Oslo")], content=_with_word("Zürich")["function"]["parameters"]),
    AnswerForm(content=_with_word("Zürich")["function"]["parameters"]),
])  # fmt: skip
def test_the_source_of_a_grammar_has_the_letters_of_the_schema_as_redaction_reads_them(
    painter: Painter, form: AnswerForm
) -> None:
    assert '"Zürich"' in form.grammar(painter.chat.call_style, painter.compiler).source


def test_a_secret_in_a_schema_is_removed_and_the_answer_is_not_learned_from(
    painter: Painter, drawn: list[Sample]
) -> None:
    secret = "ghp_" + "aB3dE5fG7hJ9" * 3
    stated = painter.grammar.record
    stated["source"] = stated["source"].replace("grey", secret)
    item = task("t", painter.record(drawn[0], constraint=stated))
    item.trajectory["turns"][0] |= {"turn_id": 1, "observation": {"type": "user_message", "content": "x"}}
    redacted = redact_trajectory(dict(item.trajectory))
    assert secret in json.dumps(item.trajectory) and secret not in json.dumps(redacted.document)
    item = dataset.ScoredTrajectory(redacted.document, item.reward)
    assert admission.line(item, RULES) == "tokens_void"
    assert grammars.stated([one["action"]["sampling"] for one in item.trajectory["turns"]]) == {}
    clean = task("t", painter.record(drawn[0]))
    assert not redact_trajectory(dict(clean.trajectory)).changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "f" * 64}, "its fingerprint is ffffffffffff and here it is"),
        ({"source": 'start: "red"'}, "its fingerprint is"),
        ({"form": "json", "source": '{"type": '}, "its source is no JSON"),
        ({"form": "regex"}, "its form is 'regex', not json or lark"),
        ({"form": "json", "source": '{"not": {}}'}, "not"),
        ({"engine": None}, "the row does not state it"),
    ],
)
def test_an_answer_whose_masks_cannot_be_computed_is_context_and_counted(
    painter: Painter, drawn: list[Sample], change: dict[str, Any], words: str
) -> None:
    both = admitted(painter.record(drawn[0]), sampling(prompt_ids=[*painter.prompt, 3]))
    alone = admitted(painter.record(drawn[1]))
    for line in (both, alone):
        (stated,) = line["grammars"].values()
        stated.update(change)
    replay, report = painter.replay, DataReport()
    (kept,) = replay.lines([both, alone], report)
    assert report == {"other_grammar": 1} and report.places == {"other_grammar": ["t"]}
    assert (replay.failed, replay.replayed) == (2, 0)
    assert replay.warning.startswith("2 of 2 answers under a grammar are context alone")
    assert words in replay.warning
    (row,) = rows.trajectory_of(kept, _spec(), None).rows
    assert row.ids[-2:] == [3, 4] and row.sampled_count == 2 and not row.allowed
    assert rows.summary([kept], _spec())["masked_share"] == 0.5


def test_an_answer_behind_a_voided_one_needs_no_masks_and_is_not_counted_again(
    painter: Painter, drawn: list[Sample]
) -> None:
    void = {**sampling(generation_id="one"), "tokens_void": True, "token_ids": [], "logprobs": []}
    behind = painter.record(drawn[0], generation_id="two", continues="one")
    line = admitted(void, behind, sampling())
    assert line["calls"][1]["grammar"]
    replay = painter.replay
    assert len(replay.lines([line | {"grammars": {}}], DataReport())) == 1
    assert (replay.failed, replay.replayed, replay.warning) == (0, 0, "")


def test_a_row_has_the_grammars_of_its_trained_answers_alone_and_a_reward_for_each(
    painter: Painter, drawn: list[Sample]
) -> None:
    other = painter.compiler(Grammar("json_schema", '{"type": "null"}'))
    shaped = sampling(constraint=other.record, presence_penalty=1.0)
    item = task("t", shaped, painter.record(drawn[0]), sampling())
    for number, turn in enumerate(item.trajectory["turns"], 1):
        turn["turn_id"] = number
    dense = [{"turn_id": number, "reward": 0.125 * number} for number in (1, 2, 3)]
    assert item.reward is not None
    item.reward["metadata"]["dense"] = dense  # type: ignore[index]
    line = admission.line(item, AdmissionRules({"d1": 0}, KEY, dense=True))
    assert isinstance(line, dict) and list(line["grammars"]) == [painter.grammar.record["hash"]]
    assert line["turn_rewards"] == [0.375, 0.375]


def test_a_row_of_a_file_that_is_left_out_is_named_by_its_place(
    painter: Painter, drawn: list[Sample]
) -> None:
    line = admitted(painter.record(drawn[0])) | {"grammars": {}, "place": "x.jsonl, record 3"}
    report = DataReport()
    assert painter.replay.lines([line], report) == []
    assert report.text == "1 other_grammar (x.jsonl, record 3)"


def test_a_constraint_that_is_used_again_gives_the_masks_of_a_new_one(
    painter: Painter, drawn: list[Sample]
) -> None:
    used = painter.grammar.begin()
    for sample in drawn:
        part = sample.token_ids[: len(sample.token_ids) // 2]
        for ids in (part, sample.token_ids):
            assert painter.grammar.replay(ids, used) == list(sample.allowed[: len(ids)])
        with pytest.raises(GrammarError, match="at place 1 "):
            painter.grammar.replay([ids[0], ids[0], *ids], used)


def test_a_constraint_that_broke_down_costs_no_other_answer_its_masks(
    painter: Painter, drawn: list[Sample]
) -> None:
    class Broken:
        """A constraint beyond a limit of work: it allows nothing, also after a reset."""

        is_broken = True

        def mask(self, out: Any) -> None:
            out[:] = 0

        def advance(self, token: int) -> None: ...

        def reset(self) -> None: ...

    begun: list[Any] = []

    def compiled(grammar: Grammar) -> CompiledGrammar:
        made = painter.compiler(grammar)

        def begin() -> Any:
            begun.append(made.begin() if begun else Broken())
            return begun[-1]

        return replace(made, begin=begin)

    replay = MaskReplay(compiled)
    assert len(replay.lines([admitted(painter.record(one)) for one in drawn], DataReport())) == len(drawn)
    assert (replay.failed, replay.replayed) == (0, len(drawn))


def test_tokens_that_the_grammar_does_not_allow_are_context(painter: Painter, drawn: list[Sample]) -> None:
    line = admitted(painter.record(drawn[0]))
    line["calls"][0]["token_ids"][0] += 1
    replay, report = painter.replay, DataReport()
    assert replay.lines([line], report) == [] and report == {"other_grammar": 1}
    assert "at place 0" in replay.warning


def test_rewards_per_turn_keep_their_sum_when_an_answer_becomes_context(
    painter: Painter, drawn: list[Sample]
) -> None:
    def line() -> dict[str, Any]:
        again = sampling(prompt_ids=[*painter.prompt, 3])
        made = admitted(painter.record(drawn[0]), again, painter.record(drawn[1]))
        return {**made, "turn_rewards": [0.125, 0.25, 0.5]}

    (whole,) = painter.replay.lines([line()], DataReport())
    assert whole["turn_rewards"] == [0.125, 0.25, 0.5]
    changed = line()
    changed["grammars"] = {}
    (moved,) = painter.replay.lines([changed], DataReport())
    assert moved["turn_rewards"] == [0.875]


def test_a_held_out_answer_is_weighed_under_its_masks_and_one_without_them_is_not(
    painter: Painter, drawn: list[Sample]
) -> None:
    method: Any = SimpleNamespace(policy=painter.policy, max_tokens=512)
    report = DataReport()
    spec = _spec()
    (with_masks,) = painter.replay.lines([admitted(painter.record(drawn[0]))], DataReport())
    without = admitted(painter.record(drawn[0]))
    found = weighable_attempts([with_masks, without], ["a", "b"], method, spec, report)
    assert [name for name, _ in found] == ["a"] and report == {"not_weighable": 1}
    assert sum(len(row.allowed) for row in found[0][1].rows) == len(drawn[0].token_ids)


def test_a_line_cannot_bring_masks_of_its_own(painter: Painter, drawn: list[Sample]) -> None:
    line = admitted(painter.record(drawn[0]))
    line["calls"][0]["allowed"] = [[1, 2]]
    (kept,) = painter.replay.lines([line], DataReport())
    assert [len(one.ids) for one in kept["calls"][0]["allowed"]] == [one.count for one in drawn[0].allowed]
    free = admitted(sampling())
    free["calls"][0]["allowed"] = [[1, 2]]
    (kept,) = painter.replay.lines([free], DataReport())
    assert "allowed" not in kept["calls"][0]
    assert not [call for call in conversations.calls_of(admitted(painter.record(drawn[0]))) if call.trains]


@pytest.mark.parametrize("rewards", [[0.5], [0.125, 0.25, 0.5, 1.0]])
def test_rewards_that_are_not_one_per_answer_are_left_for_the_check_of_trajectories(
    painter: Painter, drawn: list[Sample], rewards: list[float]
) -> None:
    line = admitted(painter.record(drawn[0]), sampling(prompt_ids=[*painter.prompt, 3]))
    (kept,) = painter.replay.lines([line | {"grammars": {}, "turn_rewards": rewards}], DataReport())
    assert kept["turn_rewards"] == rewards


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grammars": ["none"]}, "the row does not state it"),
        ({"grammars": {"h": "none"}}, "the row does not state it"),
        ({"grammar": ["h"]}, "the row does not state it"),
        ({"source": '{"const": "\ud800"}', "form": "json"}, "not JSON serializable"),
        ({"source": '{"type": "string", "maxLength": 1e400}', "form": "json"}, "number out of range"),
        ({"source": 'start: "\ud800"'}, "surrogates not allowed"),
    ],
)
def test_a_row_of_a_file_that_states_nonsense_is_left_out_and_ends_no_job(
    painter: Painter, drawn: list[Sample], change: dict[str, Any], words: str
) -> None:
    line, whole = admitted(painter.record(drawn[0])), admitted(painter.record(drawn[1]))
    (name,) = line["grammars"]
    if "grammars" in change:
        line["grammars"] = {name: "none"} if isinstance(change["grammars"], dict) else change["grammars"]
    elif "grammar" in change:
        line["calls"][0]["grammar"] = change["grammar"]
    else:
        line["grammars"][name] |= change
    replay, report = painter.replay, DataReport()
    assert replay.lines([line, whole], report) == [whole] and report == {"other_grammar": 1}
    assert words in replay.warning and replay.warning.isascii()


def test_grammars_that_were_tried_are_remembered_and_only_a_few_of_them(
    painter: Painter, drawn: list[Sample]
) -> None:
    tried: list[str] = []

    def refuse(grammar: Grammar) -> CompiledGrammar:
        tried.append(grammar.source)
        raise GrammarError("too much")

    def lines(count: int) -> list[dict[str, Any]]:
        made = [admitted(painter.record(drawn[0])) for _ in range(count)]
        for number, line in enumerate(made):
            next(iter(line["grammars"].values()))["source"] = f'start: "{number}"'
        return made

    replay = MaskReplay(refuse)
    assert replay.lines(lines(3), DataReport()) == replay.lines(lines(3), DataReport()) == []
    assert tried == ['start: "0"', 'start: "1"', 'start: "2"']
    replay.lines(lines(200), DataReport())
    replay.lines(lines(1), DataReport())
    assert tried.count('start: "0"') == 2, "those of a dataset with many are not all kept"


def test_a_requested_stop_need_not_wait_for_all_masks(painter: Painter, drawn: list[Sample]) -> None:
    asked = iter([None, KeyboardInterrupt])

    def stop() -> None:
        if error := next(asked):
            raise error

    replay = MaskReplay(painter.compiler, stop)
    with pytest.raises(KeyboardInterrupt):
        replay.lines([admitted(painter.record(one)) for one in drawn], DataReport())
    assert replay.replayed == 1


def test_equal_grammars_of_many_rows_are_one_text_in_memory(
    painter: Painter, drawn: list[Sample], tmp_path: Path
) -> None:
    items = [task(name, painter.record(one)) for name, one in zip("ab", drawn, strict=False)]
    items = [copy.deepcopy(item) for item in items]
    for item in items:  # as two documents that were decoded apart
        stated = item.trajectory["turns"][0]["action"]["sampling"]["constraint"]
        stated["source"] = "".join(list(stated["source"]))
    made = [admission.line(item, RULES) for item in items]
    found = dataset.read(
        dataset.write([one for one in made if not isinstance(one, str)], tmp_path, Counter()).path
    )
    for lines in (made, found):
        one, other = (next(iter(line["grammars"].values()))["source"] for line in lines)  # type: ignore[index]
        assert one is other and one == painter.grammar.source


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"top_p": 0.9}, "truncated_support"),
        ({"top_k": 5}, "truncated_support"),
        ({"temperature": 0.0}, "greedy"),
    ],
)
def test_a_grammar_does_not_excuse_a_truncated_or_greedy_draw(
    painter: Painter, drawn: list[Sample], more: dict[str, Any], reason: str
) -> None:
    assert admission.line(task("t", painter.record(drawn[0], **more)), RULES) == reason


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_line_of_a_policy_gradients_job_is_learned_from_whole_and_without_masks_by_text_methods(
    painter: Painter, drawn: list[Sample], tmp_path: Path, algorithm: str
) -> None:
    line = admitted(painter.record(drawn[0]), sampling(presence_penalty=1.0, prompt_ids=[*painter.prompt, 3]))
    path = tmp_path / "dataset.jsonl"
    path.write_bytes(dataset.line_bytes(line))
    ((found,), _) = files.read([path], algorithm)
    assert "grammars" not in found
    assert all("grammar" not in call and "trains" not in call for call in found["calls"])
    masked_ones = [row.sampled_count for row in rows.trajectory_of(found, _spec(), None).rows]
    assert sum(masked_ones) == len(drawn[0].token_ids) + len(sampling()["token_ids"])
    ((kept,), _) = files.read([path], "reinforce")
    assert kept["grammars"] and [call.get("trains") for call in kept["calls"]] == [None, False]


def test_a_job_learns_from_such_answers_and_says_what_it_could_not_use(
    painter: Painter, drawn: list[Sample], make_job: MakeJob, events: Events
) -> None:
    folder = make_job(
        algorithm="reinforce", epochs=1, batch_rows=6, model_folder=str(painter.folder), importance_cap=2.0
    )
    lines = []
    for number, sample in enumerate(drawn):
        green = "green" in painter.chat.text(sample.token_ids)
        line = admitted(painter.record(sample), success=green)
        line |= {"trajectory_id": f"t{number}", "task_id": f"t{number}", "group_key": None}
        lines.append(line | {"outcome": float(number % 2)})
    lines[5]["grammars"] = {name: {**one, "engine": "x", "fingerprint": "0" * 64}
                            for name, one in lines[5]["grammars"].items()}  # fmt: skip
    (folder / dataset.FILE).write_bytes(b"".join(map(dataset.line_bytes, lines)))
    assert worker.main(folder) == 0, events[-1]
    (stage,) = [one for one in events if one["event"] == "stage" and one["name"] == "train"]
    assert stage["excluded"] == {"other_grammar": 1} and stage["rows"] == 5
    (warning,) = [one for one in events if one["event"] == "warning"]
    assert warning["message"].startswith("1 of 6 answers under a grammar are context alone")
    (step,) = [one["metrics"] for one in events if one["event"] == "progress"]
    assert step["grad_norm"] > 0 and step["kl_divergence"] < 1e-4
    assert step["ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert step["logprob_difference"] < 1e-4  # between the recorded log-probs and the learner's
    assert step["importance_ess"] == pytest.approx(1.0, abs=1e-4)


def _job(make_job: MakeJob, painter: Painter, lines: list[dict[str, Any]], **more: Any) -> Path:
    base = str(painter.folder)
    folder = make_job(algorithm="reinforce", epochs=1, batch_rows=6, model_folder=base, **more)
    (folder / dataset.FILE).write_bytes(b"".join(map(dataset.line_bytes, lines)))
    return folder


def test_a_job_whose_masks_are_all_of_another_engine_ends_with_the_first_cause(
    painter: Painter, drawn: list[Sample], make_job: MakeJob, events: Events
) -> None:
    lines = [admitted(painter.record(one)) for one in drawn[:2]]
    for line in lines:
        next(iter(line["grammars"].values()))["engine"] = "other 1.0"
        next(iter(line["grammars"].values()))["fingerprint"] = "0" * 64
    for share, words in (
        (1.0, "No row is left to train on. 2 of 2 "),
        (0.5, "2 of 2 sampled answers have no "),
    ):
        assert worker.main(_job(make_job, painter, lines, max_masked_share=share)) == 1
        assert events[-1]["code"] == "DATA"
        message = events[-1]["message"]
        assert message.startswith(words) and "2 of 2 answers under a grammar are context alone" in message
        assert "the engine (other 1.0; here llguidance " in message


@pytest.mark.parametrize(("lost", "share", "code"), [(3, 0.5, 0), (4, 0.5, 1), (4, 0.7, 0), (1, 0.1, 1)])
def test_a_job_ends_if_too_many_of_its_answers_lose_their_masks(
    painter: Painter,
    drawn: list[Sample],
    make_job: MakeJob,
    events: Events,
    lost: int,
    share: float,
    code: int,
) -> None:
    """The limit is that of a frozen dataset, which cannot know what the job will find."""
    lines = []
    for number, sample in enumerate(drawn):
        line = admitted(painter.record(sample)) | {
            "trajectory_id": f"t{number}",
            "outcome": float(number % 2),
        }
        if number < lost:
            line["grammars"] = {}
        lines.append(line)
    assert worker.main(_job(make_job, painter, lines, max_masked_share=share)) == code, events[-1]
    if code:
        assert f"{lost} of 6 sampled answers have no tokens to train on" in events[-1]["message"]


def test_a_job_that_is_asked_to_stop_does_so_while_it_computes_masks(
    painter: Painter, drawn: list[Sample], make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: worker.Stop) -> None:
        raise worker.StopError

    monkeypatch.setattr(worker.Stop, "__call__", stop)
    folder = _job(make_job, painter, [admitted(painter.record(one)) for one in drawn[:2]])
    assert worker.main(folder) == worker.STOPPED
    assert "train" not in [one.get("name") for one in events]


def _spec() -> Any:
    return SimpleNamespace(
        unparsable_penalty=0.5, dense_rewards=False, return_from="outcome", behaviour="recorded"
    )
