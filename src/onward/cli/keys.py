"""``onward keys init|show|sign``: the key that signs checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, facts, print_json, print_text, say
from onward.errors import NotFoundError
from onward.files import keep_private
from onward.training import checkpoints, signatures
from onward.warehouse import Objects

keys_app = Commands(
    help="""Keys that sign checkpoints: make one, show its public half, sign what is stored.

    onward keys init
    onward keys show
    """
)
app.add_typer(keys_app, name="keys")


@keys_app.command()
def init(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Create the key with which the trainer of this data folder signs its checkpoints.

    The private half never leaves run/models.key. Restart a running service afterwards.

    onward keys init
    onward keys init --dir data
    """
    settings = load_settings(file, data_dir)
    keep_private(settings.data_dir)
    made = signatures.make_key(settings.run_dir)
    told = {"key": signatures.key_id(made), "public": signatures.public_text(made)}
    if as_json:
        print_json(told)
        return
    print_text(
        f"Checkpoints of {settings.data_dir} are signed with key {told['key']} from now on.",
        "Other machines trust it with this line of onward.toml:",
        f'  [models] trusted_keys = ["{told["public"]}"]',
        "With require_signature = true beside it, nothing else is loaded.",
    )


@keys_app.command()
def show(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Print the public key of this data folder, and which keys count here.

    onward keys show
    """
    settings = load_settings(file, data_dir)
    own = signatures.load_public(settings.run_dir)
    trust = signatures.Trust.from_settings(settings)
    told = {
        "key": None if own is None else signatures.key_id(own),
        "public": None if own is None else signatures.public_text(own),
        "trusted": sorted(trust.keys),
        "required": trust.required,
    }
    if as_json:
        print_json(told)
    else:
        print_text(facts({**told, "trusted": ", ".join(sorted(trust.keys)) or "none"}))


@keys_app.command()
def sign(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="Job that made it: see 'onward models show'.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Sign the stored checkpoint of a job that ended before there was a key, or with an earlier key.

    Every file is checked against the committed manifest first.

    onward keys sign 5f0c2a1e-8d1b-4f43-9d57-0a54c1f5a0c9
    """
    settings = load_settings(file, data_dir)
    key = signatures.load_key(settings.run_dir)
    if key is None:
        raise NotFoundError(f"{settings.run_dir} has no key to sign with: make one with 'onward keys init'.")
    done = run_async(checkpoints.sign_stored(Objects.open(settings.objects_at), job_id, key))
    say(f"Signed {done.object_prefix} with key {signatures.key_id(key.public_key())}.")
