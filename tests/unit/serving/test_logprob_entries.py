"""Log-probs in OpenAI's form: the place of each token in the answer's text."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from onward.lm.token_bytes import TokenBytes
from onward.serving.engines.answer_options import LogprobEntries
from onward.serving.protocol.completions import CompletionChunks
from onward.serving.protocol.openai import token_logprobs

VOCAB = {"<unk>": 0, "\u2581Hi": 1, "\u2581you": 2, "!": 3, "\u2581": 4, "Hi": 5, "<0xC3>": 6, "<0xBC>": 7}
LLAMA_2 = decoders.Sequence(
    [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


@pytest.mark.parametrize(
    ("ids", "places"),
    [([1, 2, 3], [0, 2, 6]), ([4, 2], [0, 0]), ([5, 2], [0, 2]), ([4, 6, 7, 3], [0, 0, 0, 1])],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_last_token_is_listed_where_the_tokenizer_drops_the_first_space(ids, places, at_once):
    backend = Tokenizer(BPE(VOCAB, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = LLAMA_2
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    entries = LogprobEntries(TokenBytes(tokenizer))
    pieces = [ids] if at_once else [[token] for token in ids]
    made = [one for piece in pieces for one in entries.append(piece, [-1.0] * len(piece), [])]
    assert [one["at"] for one in made] == places
    text = tokenizer.decode(ids)
    assert len(token_logprobs(made, len(text))["content"]) == len(ids)


def test_the_offsets_of_a_streamed_piece_go_on_from_the_text_before_it():
    entries = [
        {"token": " Hi", "logprob": -1.0, "bytes": [32, 72, 105], "top_logprobs": [], "at": 0},
        {"token": "!", "logprob": -2.0, "bytes": [33], "top_logprobs": [], "at": 2},
    ]
    chunks = CompletionChunks("g", "m", 0, include_usage=False)
    told = token_logprobs(entries[1:], 3, with_places=True)
    (choice,) = json.loads(chunks.content("!", told).removeprefix(b"data: "))["choices"]
    assert choice["logprobs"]["text_offset"] == [2] and choice["logprobs"]["tokens"] == ["!"]
    assert all("at" not in one for one in token_logprobs(entries, 3)["content"])
