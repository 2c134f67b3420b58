"""The ``nats`` command as far as the published lines use it: pub, req and sub, with the same bytes.

The real one is a Go program that no Python package has. ``NATS_URL`` and ``NATS_TOKEN`` name the server.
"""

import argparse
import asyncio
import os
import sys

import nats


async def main(words: argparse.Namespace) -> None:
    client = await nats.connect(os.environ["NATS_URL"], token=os.environ["NATS_TOKEN"])
    if words.command == "pub":
        await client.publish(words.subject, words.body.encode())
    elif words.command == "req":
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        await client.publish(words.subject, words.body.encode(), reply=inbox)
        print((await replies.next_msg(timeout=30)).data.decode(), flush=True)
    else:
        heard = await client.subscribe(words.subject, queue=words.queue)
        await client.flush()
        print("listening", file=sys.stderr, flush=True)
        seen = 0
        async for message in heard.messages:
            print(message.data.decode(), flush=True)
            seen += 1
            if seen == words.count:
                break
    await client.flush()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("pub", "req", "sub"):
        command = commands.add_parser(name)
        command.add_argument("subject")
        if name == "sub":
            command.add_argument("--queue", default="")
            command.add_argument("--count", type=int, default=0)
        else:
            command.add_argument("body")
    asyncio.run(main(parser.parse_args()))
