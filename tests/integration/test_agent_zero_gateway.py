"""Agent Zero whose model provider is Onward's gateway: its trajectories have the exact tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from agent_zero_host import Agent, Host, Line, ModelWrapper, say
from agent_zero_world import recorded, until
from scripted_engine import BASE_DIGEST
from serving_world import World

from onward.capture import provenance


async def test_turns_have_the_records_of_the_gateway_and_it_records_nothing_itself(
    world: World, tmp_path: Path
) -> None:
    texts = [say("shell", "Look.", cmd="ls"), say("response", text="Two.")]
    world.engine.script = lambda messages, adapter: texts[sum(m["role"] == "assistant" for m in messages)]
    key = (world.settings.run_dir / "api.key").read_text().strip()
    url = world.gateway.server.url

    async def model(agent: Agent, lines: list[Line]) -> str:
        """What LiteLLM passes on: the text alone. Agent Zero cuts white space off."""
        wrapper = host.models[-1]
        roles = {"human": "user", "ai": "assistant"}
        asked = [{"role": roles.get(line.type, line.type), "content": line.content} for line in lines]
        headers = {"Authorization": f"Bearer {key}", **wrapper.kwargs["extra_headers"]}
        async with httpx.AsyncClient() as http:
            body = {"model": "onward", "messages": asked}
            answer = await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        assert "trajectory_id" not in answer.json()["onward"]
        return answer.json()["choices"][0]["message"]["content"].strip()

    async def shell(agent: Agent, args: dict[str, Any]) -> str:
        return "a b"

    (tmp_path / "a0" / "usr").mkdir(parents=True)
    (tmp_path / "a0" / "usr" / "secrets.env").write_text(f"ONWARD_API_KEY={key}\n")
    with Host(tmp_path / "a0", config={"gateway_url": url}, in_thread=True) as host:
        await until(lambda: host.runtime.status()["gateway"] == url)
        host.new_model = lambda: ModelWrapper("openai/onward", {"api_base": f"{url}/v1"})
        host.model = lambda agent, lines: model(agent, lines)
        host.tools["shell"] = shell
        assert await host.ask("Count") == "Two."
        await until(lambda: host.runtime.status()["recorded"] == 1)
        (document,) = recorded(host.plugin / "data")
        for turn in document["turns"]:
            sampling = turn["action"]["sampling"]
            assert sampling["model_digest"] == BASE_DIGEST
            assert provenance.verify(sampling, provenance.load_key(world.settings.run_dir))
            assert bytes(sampling["token_ids"][:-1]).decode() == turn["action"]["raw_response"]
        assert document["metadata"]["model"] == "tiny" and document["metadata"]["temperature"] == 1.0
        async with httpx.AsyncClient() as http:
            where = f"{url}/v1/records/{document['trajectory_id']}"
            ours = await http.get(where, headers={"Authorization": f"Bearer {key}"})
            other = await http.get(f"{url}/v1/records/other", headers={"Authorization": f"Bearer {key}"})
            nobody = await http.get(where, headers={"Authorization": "Bearer no-key"})
        assert [one["text"] for one in ours.json()["records"]] == texts
        assert other.json() == {"records": []} and nobody.status_code == 401
