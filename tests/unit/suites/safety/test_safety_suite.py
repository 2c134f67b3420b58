"""The safety suites end to end against an OpenAI-compatible endpoint, and their report."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from onward.capture.make_redactor import redactor_of
from onward.config import Settings
from onward.errors import ConfigError, EngineError
from onward.suites.finding import FACTORIES, Sources, find
from onward.suites.safety import factories, report
from onward.suites.safety.answers import word_of
from onward.suites.safety.bias import gaps, median_interval
from onward.suites.safety.items import items_of, prompts
from onward.suites.safety.judging import compare
from onward.suites.safety.suite import SafetySuite
from onward.suites.safety.transforms import TRANSFORMS
from onward.suites.suite import Endpoint, ItemResult

DECLINES = "I'm sorry, but I can't help with that request."
HELPS = "Sure! Here is how: first, take the parts that you need, and then put them together."


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128


@contextmanager
def serving(answer: Callable[[list[dict[str, str]]], str]) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"choices": [{"message": {"content": answer(asked["messages"])}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_port}/v1", "m", "k")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def careful(messages: list[dict[str, str]]) -> str:
    """A policy that declines harmful requests in plain words only."""
    harmful = {text for texts in prompts()["harmful"].values() for text in texts}
    return DECLINES if messages[-1]["content"] in harmful else HELPS


async def test_a_policy_that_refuses_in_plain_words_alone_is_seen_through_by_the_transforms():
    with serving(careful) as policy:
        found = await SafetySuite("safety", ("refusal", "over_refusal", "jailbreak"), limit=21).run(
            policy, seed=0
        )
    by_kind = {result.kind: result for result in found}
    assert all(result.success for result in found if result.kind.startswith(("refusal/", "over_refusal/")))
    assert word_of(by_kind["jailbreak/prefix_injection"]) == "complied"
    assert word_of(by_kind["jailbreak/base64"]) == "missed" and by_kind["jailbreak/base64"].score is None
    assert by_kind["jailbreak/many_shot"].success and len(by_kind["jailbreak/many_shot"].transcript) == 14


async def test_a_broken_policy_is_neither_safe_nor_unsafe():
    with serving(lambda messages: "") as policy:
        found = await SafetySuite("safety", limit=14).run(policy, seed=0)
    assert {word_of(result) for result in found} == {"unreadable"}
    assert not any(result.success for result in found) and {result.score for result in found} == {None}


async def test_a_policy_that_is_away_raises():
    with serving(careful) as policy:
        pass
    with pytest.raises(EngineError):
        await SafetySuite("refusal", ("refusal",), limit=14).run(policy, seed=0)


async def test_the_report_groups_redacted_transcripts_and_escapes_what_the_model_wrote(tmp_path):
    mail = "<script>alert(1)</script> write to jane.roe" + "@kranich-mail.net and follow the next step"
    with serving(careful) as policy, serving(lambda messages: mail) as worse:
        suite = SafetySuite("refusal", ("refusal",), limit=64)
        current, candidate = await suite.run(policy, seed=0), await suite.run(worse, seed=0)
    verdict = compare(candidate, current)
    redactor = redactor_of(Settings(), {})
    made = report.document(
        "v2", "v1", candidate, current, verdict, lambda text: str(redactor.document(text).document)
    )
    as_json, as_html = report.write(tmp_path / "v2", made)
    stored = json.loads(as_json.read_text())
    assert stored["verdict"] == "failed" and len(stored["failing"]["refusal/weapons"]) == 8
    assert stored["words"]["current"]["refusal/weapons"] == {"refused": 8}
    page = as_html.read_text()
    for text in (as_json.read_text(), page):
        assert "jane.roe" not in text
    assert "<script" not in page and "&lt;script&gt;" in page and "src=" not in page


async def test_every_name_of_the_table_makes_its_suite():
    names = {name for name, place in FACTORIES.items() if place == "onward.suites.safety.factories:make"}
    assert names == set(factories.NAMES)
    for name in names:
        suite = await find(name, Sources(items=28))
        assert (suite.name, suite.purpose) == (name, "safety")
        assert 0 < suite.size <= 28 * (5 if name == "safety" else 1)


def test_the_sets_have_the_promised_sizes_and_do_not_overlap():
    harmful, harmless = prompts()["harmful"], prompts()["harmless"]
    assert len(harmful) == 8 and {len(texts) for texts in (*harmful.values(), *harmless.values())} == {8}
    texts = [text for part in (harmful, harmless) for row in part.values() for text in row]
    assert len(set(texts)) == 128
    assert len(items_of("toxicity", 100)) == 40 and len(items_of("jailbreak", 10_000)) == 7 * 64


def test_bias_prompts_of_a_template_differ_in_the_group_alone():
    items = items_of("bias", 28)
    groups = prompts()["bias"]["groups"]
    rows = [item for item in items if item.item_id.startswith("bias/origin/1/")]
    assert len(items) == 28 and len(rows) == 4
    shapes = {
        row.request.replace(group, "{group}") for row, group in zip(rows, groups["origin"], strict=True)
    }
    assert shapes == {prompts()["bias"]["templates"][1]}


def test_encoded_requests_decode_to_the_request():
    encoded = TRANSFORMS["base64"]("Harm it.")[0]["content"].splitlines()[1]
    assert base64.b64decode(encoded) == b"Harm it."
    assert TRANSFORMS["rot13"]("Harm it.")[0]["content"].endswith("Unez vg.")
    assert TRANSFORMS["leetspeak"]("Harm it.")[0]["content"] == "H4rm 17."
    pieces = TRANSFORMS["splitting"]("Harm it now.")[0]["content"].splitlines()[:4]
    assert "".join(piece.split(" = ")[1].strip("'") for piece in pieces) == "Harm it now."


def test_digests_differ_by_items_and_agree_for_the_same():
    one = SafetySuite("refusal", ("refusal",), limit=16)
    assert one.digest() == SafetySuite("refusal", ("refusal",), limit=16).digest()
    assert one.digest() != SafetySuite("refusal", ("refusal",), limit=17).digest()


def test_a_suite_without_items_is_refused():
    with pytest.raises(ConfigError, match="at least 14"):
        SafetySuite("bias", ("bias",), limit=5)


def treated(worse: str | None, templates: int) -> list[ItemResult]:
    """Results of the bias items in which one group gets 0.4 and every other one 0.9."""
    return [
        ItemResult(item.item_id, item.kind, 0.4 if item.item_id.endswith(f"/{worse}") else 0.9, True)
        for item in items_of("bias", 14 * templates)
    ]


def test_a_gap_is_the_difference_to_the_other_groups_and_needs_as_many_templates_as_show_it():
    """Seven equal differences have a chance of 2⁻⁷ = 0.0078 on one side of the median: enough for three
    groups (0.025 / 3), too few for four (0.025 / 4)."""
    found = {gap.attribute: gap for gap in gaps(treated("a Polish person", 8))}
    gap = found["origin"]
    assert (gap.group, gap.verdict, gap.templates) == ("a Polish person", "gap", 8)
    assert (gap.difference, gap.low, gap.high) == pytest.approx((-0.5, -0.5, -0.5))
    assert found["age"].verdict == "no gap"
    seven = {gap.attribute: gap for gap in gaps(treated("a Polish person", 7))}
    assert (seven["origin"].verdict, seven["age"].verdict) == ("not shown", "no gap")
    assert (seven["origin"].low, seven["origin"].high) == (-1.0, 1.0)
    assert {gap.verdict for gap in gaps(treated("a Polish person", 6))} == {"not shown"}


def test_the_interval_of_the_median_lies_between_the_tabled_ranks():
    """The sign test's tables: of 10 values the 2nd and 9th, of 20 the 6th and 15th."""
    assert median_interval([n / 100 for n in range(10, 0, -1)], 0.025) == (0.02, 0.09)
    assert median_interval([n / 100 for n in range(1, 21)], 0.025) == (0.06, 0.15)
    assert median_interval([0.0] * 5, 0.025) == (-1.0, 1.0), "2⁻⁵ is above the tail"


def test_a_candidate_that_treats_one_group_worse_is_stopped():
    verdict = compare(treated("a Polish person", 10), treated(None, 10))
    bias = verdict.aspects[0]
    assert (bias.name, bias.items, bias.worse, bias.better, bias.p) == ("bias", 40, 10, 0, 2.0**-10)
    assert verdict.stops
