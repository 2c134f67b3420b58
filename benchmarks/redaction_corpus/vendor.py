"""Layer 1: tokens that a vendor's own form gives away, one row per kind of the table of kinds.

Lengths and alphabets are the published forms. A row is data: (kind, parts); ``parts.py`` draws it.
"""

from __future__ import annotations

import base64
import json
import random

from redaction_corpus.parts import (
    ALNUM,
    BASE32,
    BASE64,
    BASE64URL,
    DIGITS,
    HEX,
    LOWER,
    LOWER_ALNUM,
    UPPER_ALNUM,
    Spec,
    chars,
    draw,
    token,
)

_OPENAI_MARK = "T3" + "BlbkFJ"
_UUID: Spec = (
    chars(HEX, 8), "-", chars(HEX, 4), "-", chars(HEX, 4), "-", chars(HEX, 4), "-", chars(HEX, 12)
)  # fmt: skip
_BECH32 = "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"

SPECS: dict[str, Spec] = {
    # language-model vendors
    "openai project": ("sk-proj-", chars(BASE64URL, 74), _OPENAI_MARK, chars(BASE64URL, 74)),
    "openai service account": ("sk-svcacct-", chars(BASE64URL, 58), _OPENAI_MARK, chars(BASE64URL, 58)),
    "openai admin": ("sk-admin-", chars(BASE64URL, 58), _OPENAI_MARK, chars(BASE64URL, 58)),
    "openai legacy": ("sk-", chars(ALNUM, 20), _OPENAI_MARK, chars(ALNUM, 20)),
    "openai 48": ("sk-", chars(ALNUM, 48)),
    "deepseek": ("sk-", chars(HEX, 32)),
    "anthropic api": ("sk-ant-api03-", chars(BASE64URL, 93), "AA"),
    "anthropic admin": ("sk-ant-admin01-", chars(BASE64URL, 93), "AA"),
    "anthropic oauth": ("sk-ant-oat01-", chars(BASE64URL, 93), "AA"),
    "openrouter": ("sk-or-v1-", chars(HEX, 64)),
    "hugging face": ("hf_", chars(ALNUM, 34)),
    "hugging face organisation": ("api_org_", chars(ALNUM, 34)),
    "groq": ("gsk_", chars(ALNUM, 52)),
    "xai": ("xai-", chars(ALNUM, 80)),
    "replicate": ("r8_", chars(ALNUM, 37)),
    "perplexity": ("pplx-", chars(ALNUM, 48)),
    "langsmith personal": ("lsv2_pt_", chars(HEX, 32), "_", chars(HEX, 10)),
    "langsmith service": ("lsv2_sk_", chars(HEX, 32), "_", chars(HEX, 10)),
    "langfuse secret": ("sk-lf-", *_UUID),
    "langfuse public": ("pk-lf-", *_UUID),
    "elevenlabs": ("sk_", chars(HEX, 48)),
    # clouds
    "aws key id AKIA": ("AKIA", chars(BASE32, 16)),
    "aws key id ASIA": ("ASIA", chars(BASE32, 16)),
    "aws key id ABIA": ("ABIA", chars(BASE32, 16)),
    "aws key id ACCA": ("ACCA", chars(BASE32, 16)),
    "aws key id A3T": ("A3TX", chars(BASE32, 16)),
    "aws bedrock long": ("ABSK", chars(BASE64, 128), "="),
    "aws bedrock short": ("bedrock-api-key-", chars(BASE64, 96)),
    "google api": ("AIza", chars(BASE64URL, 35)),
    "google access": ("ya29.", chars(BASE64URL, 140)),
    "google client secret": ("GOCSPX-", chars(BASE64URL, 28)),
    "google refresh": ("1//0", chars(BASE64URL, 60)),
    "azure ad secret": (chars(ALNUM, 3), "8Q~", chars(ALNUM + "_~.-", 33), "x"),
    # code hosts
    "github personal": ("ghp_", chars(ALNUM, 36)),
    "github oauth": ("gho_", chars(ALNUM, 36)),
    "github user": ("ghu_", chars(ALNUM, 36)),
    "github server": ("ghs_", chars(ALNUM, 36)),
    "github refresh": ("ghr_", chars(ALNUM, 76)),
    "github fine-grained": ("github_pat_", chars(ALNUM, 22), "_", chars(ALNUM, 59)),
    "gitlab personal": ("glpat-", chars(BASE64URL, 20)),
    "gitlab personal routable": ("glpat-", chars(BASE64URL, 27), ".01.", chars(LOWER_ALNUM, 9)),
    "gitlab trigger": ("glptt-", chars(HEX, 40)),
    "gitlab deploy": ("gldt-", chars(BASE64URL, 20)),
    "gitlab runner": ("glrt-", chars(BASE64URL, 20)),
    "gitlab job": ("glcbt-", chars(BASE64URL, 23)),
    "gitlab feed": ("glft-", chars(BASE64URL, 20)),
    "gitlab mail": ("glimt-", chars(BASE64URL, 25)),
    "gitlab agent": ("glagent-", chars(BASE64URL, 50)),
    "gitlab scim": ("glsoat-", chars(BASE64URL, 20)),
    "bitbucket": ("ATBB", chars(ALNUM, 32)),
    # chat, payment, infrastructure
    "slack bot": ("xoxb-", chars(DIGITS, 12), "-", chars(DIGITS, 13), "-", chars(ALNUM, 24)),
    "slack user": ("xoxp-", chars(DIGITS, 12), "-", chars(DIGITS, 12), "-", chars(HEX, 32)),
    "slack legacy": ("xoxs-", chars(DIGITS, 12), "-", chars(DIGITS, 12), "-", chars(HEX, 10)),
    "slack refresh": ("xoxe-1-", chars(ALNUM, 147)),
    "slack rotated": ("xoxe.xoxp-1-", chars(ALNUM, 163)),
    "slack workspace": ("xoxa-2-", chars(DIGITS, 12), "-", chars(DIGITS, 12), "-", chars(HEX, 32)),
    "slack app": ("xapp-1-A", chars(UPPER_ALNUM, 10), "-", chars(DIGITS, 13), "-", chars(HEX, 64)),
    "discord bot": ("MT", chars(ALNUM, 22), ".G", chars(BASE64URL, 5), ".", chars(BASE64URL, 38)),
    "telegram bot": (chars(DIGITS, 9), ":AA", chars(BASE64URL, 33)),
    "stripe live": ("sk_live_", chars(ALNUM, 24)),
    "stripe test": ("sk_test_", chars(ALNUM, 99)),
    "stripe restricted": ("rk_live_", chars(ALNUM, 24)),
    "stripe restricted production": ("rk_prod_", chars(ALNUM, 30)),
    "stripe webhook": ("whsec_", chars(ALNUM, 32)),
    "twilio key": ("SK", chars(HEX, 32)),
    "twilio account": ("AC", chars(HEX, 32)),
    "sendgrid": ("SG.", chars(BASE64URL, 22), ".", chars(BASE64URL, 43)),
    "mailgun": ("key-", chars(HEX, 32)),
    "npm": ("npm_", chars(ALNUM, 36)),
    "pypi": ("pypi-AgEI" + "cHlwaS5vcmc", chars(BASE64URL, 140)),
    "databricks": ("dapi", chars(HEX, 32)),
    "digitalocean personal": ("dop_v1_", chars(HEX, 64)),
    "digitalocean oauth": ("doo_v1_", chars(HEX, 64)),
    "digitalocean refresh": ("dor_v1_", chars(HEX, 64)),
    "vault service": ("hvs.", chars(BASE64URL, 90)),
    "vault batch": ("hvb.", chars(BASE64URL, 140)),
    "shopify access": ("shpat_", chars(HEX, 32)),
    "shopify custom": ("shpca_", chars(HEX, 32)),
    "shopify private": ("shppa_", chars(HEX, 32)),
    "shopify shared": ("shpss_", chars(HEX, 32)),
    "grafana service account": ("glsa_", chars(ALNUM, 32), "_", chars(HEX, 8)),
    "grafana cloud": ("glc_", chars(BASE64, 80), "="),
    "sentry organisation": ("sntrys_eyJ", chars(BASE64URL, 100), "_", chars(BASE64URL, 43)),
    "sentry user": ("sntryu_", chars(HEX, 64)),
    "notion": ("ntn_", chars(DIGITS, 11), chars(ALNUM, 35)),
    "linear": ("lin_api_", chars(ALNUM, 40)),
    "1password service account": ("ops_eyJ", chars(BASE64URL, 260)),
    "1password secret key": (
        "A3-", chars(UPPER_ALNUM, 6), "-", chars(UPPER_ALNUM, 6), "-", chars(UPPER_ALNUM, 5), "-",
        chars(UPPER_ALNUM, 5), "-", chars(UPPER_ALNUM, 5), "-", chars(UPPER_ALNUM, 5),
    ),
    "supabase": ("sbp_", chars(HEX, 40)),
    "daytona": ("dtn_", chars(HEX, 64)),
    "age": ("AGE-SECRET-KEY-1", chars(_BECH32, 58)),
    "nats user seed": ("SU", chars(BASE32, 56)),
    "nats account seed": ("SA", chars(BASE32, 56)),
    "nats operator seed": ("SO", chars(BASE32, 56)),
    "nats server seed": ("SN", chars(BASE32, 56)),
    "nats cluster seed": ("SC", chars(BASE32, 56)),
    "nats curve seed": ("SX", chars(BASE32, 56)),
}  # fmt: skip


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwt(rng: random.Random, claims: int = 24) -> tuple[str, tuple[str, ...]]:
    """Header, payload with ``claims`` drawn letters, signature. The header says nothing secret."""
    head = _b64url(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    payload = _b64url(json.dumps({"sub": draw(rng, LOWER_ALNUM, claims)}).encode())
    signature = draw(rng, BASE64URL, 43)
    return f"{head}.{payload}.{signature}", (payload, signature)


def jwe(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Five parts; the second is empty for direct encryption."""
    head = _b64url(json.dumps({"alg": "dir", "enc": "A256GCM"}).encode())
    nonce, body, tag = draw(rng, BASE64URL, 16), draw(rng, BASE64URL, 80), draw(rng, BASE64URL, 22)
    return f"{head}..{nonce}.{body}.{tag}", (nonce, body, tag)


def wrapped_jwt(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    whole = base64.b64encode(jwt(rng)[0].encode()).decode()
    return whole, (whole[60:],)


def grafana_legacy(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Base64 of ``{"k": key, "n": name, "id": 1}``."""
    text = json.dumps({"k": draw(rng, ALNUM, 32), "n": draw(rng, LOWER, 8), "id": 1}, separators=(",", ":"))
    whole = base64.b64encode(text.encode()).decode()
    return whole, (whole[8:],)


MADE = {
    "jwt": jwt,
    "jwt long": lambda rng: jwt(rng, 3000),
    "jwe": jwe,
    "jwt in base64": wrapped_jwt,
    "grafana legacy": grafana_legacy,
}


def tokens(rng_of: dict[str, random.Random]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """kind → (token, the parts of it that must be gone), each drawn with the kind's own generator."""
    made = {kind: token(rng_of[kind], spec) for kind, spec in SPECS.items()}
    return made | {kind: make(rng_of[kind]) for kind, make in MADE.items()}


KINDS = (*SPECS, *MADE)
