"""Layer 1, first part: keys of model vendors, clouds and code hosts, each recognised by its own form.

No pattern has a left boundary: the check ``start`` decides where a token may begin, which RE2 cannot express.
No pattern has a right boundary either: a key is found before ``. , ) * < } & ]`` and before an escaped quote.
"""

from __future__ import annotations

from onward.redaction.rule import B32, HEX, Rule, body, token, vendor_rule

_MIXED = "aB3dE5fG7_hJ9k-LmN2pQr"
_B64 = "aB3dE5fG7+hJ9k/LmN2pQr"
_UUID = "-".join(body(size, HEX) for size in (8, 4, 4, 4, 12))
_JWT = "eyJhbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0In0" + "." + body(43)

MODELS = (
    token(
        "ANTHROPIC_KEY",
        r"sk-ant-[A-Za-z0-9_-]{20,}",
        "sk-" + "ant-api03-" + body(93, _MIXED) + "AA",
        "sk-" + "ant-oat01-" + body(60),
        negatives=("sk-" + "ant-short", "task-ant-colony-optimisation-with-many-ants"),
    ),
    token("OPENROUTER_KEY", r"sk-or-v1-[0-9a-f]{32,}", "sk-" + "or-v1-" + body(64, HEX)),
    token(
        "LANGFUSE_KEY",
        r"(?:pk|sk)-lf-[0-9a-f]{8}-[0-9a-f-]{27}",
        "sk-" + "lf-" + _UUID,
        "pk-" + "lf-" + _UUID,
    ),
    token(
        "OPENAI_KEY",
        r"sk-[A-Za-z0-9_-]{20,}",
        "sk-" + "proj-" + body(74, _MIXED) + "T3" + "BlbkFJ" + body(74, _MIXED),
        "sk-" + body(20) + "T3" + "BlbkFJ" + body(20),
        "sk-" + "a" * 40,
        "sk-" + "svcacct-" + body(50) + "-_" + body(20),
        "sk-" + "admin-" + body(60, _MIXED),
        "sk-" + body(32, HEX),
        checks=("start", "dense"),
        negatives=(
            "the risk-adjusted-return-of-the-portfolio",
            "<task-notification-for-the-user>",
            "sk-learn-pipeline-with-many-steps",
        ),
        note="DeepSeek and others use the same form.",
    ),
    token(
        "HF_TOKEN",
        r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
        "hf_" + body(34),
        "api_" + "org_" + body(34),
        negatives=("hf_hub_download and hf_transfer",),
    ),
    token("GROQ_KEY", r"gsk_[A-Za-z0-9]{40,}", "gsk_" + body(52)),
    token("XAI_KEY", r"xai-[A-Za-z0-9_-]{60,}", "xai-" + body(80)),
    token("REPLICATE_TOKEN", r"r8_[A-Za-z0-9_-]{37,}", "r8_" + body(37)),
    token("PERPLEXITY_KEY", r"pplx-[A-Za-z0-9]{32,}", "pplx-" + body(48)),
    token(
        "LANGSMITH_KEY",
        r"lsv2_(?:pt|sk)_[A-Za-z0-9]{32,}(?:_[A-Za-z0-9]+)?",
        "lsv2_" + "pt_" + body(32, HEX) + "_" + body(10, HEX),
        "lsv2_" + "sk_" + body(32, HEX) + "_" + body(10, HEX),
    ),
    token(
        "ELEVENLABS_KEY",
        r"sk_[0-9a-f]{48}",
        "sk_" + body(48, HEX),
        checks=("start", "end"),
        negatives=("sk_" + "learn_pipeline_of_the_feature_extraction_module.py",),
    ),
    token("NVIDIA_KEY", r"nvapi-[A-Za-z0-9_-]{40,}", "nvapi-" + body(64, _MIXED)),
    token("CEREBRAS_KEY", r"csk-[a-z0-9]{40,}", "csk-" + body(48, HEX)),
    token(
        "TAVILY_KEY", r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}", "tvly-" + body(32), "tvly-" + "dev-" + body(32)
    ),
    token("JINA_KEY", r"jina_[0-9a-f]{32}[A-Za-z0-9_-]{20,}", "jina_" + body(32, HEX) + body(28)),
    token("FIRECRAWL_KEY", r"fc-[0-9a-f]{32}", "fc-" + body(32, HEX), checks=("start", "end")),
    token("E2B_KEY", r"e2b_[0-9a-f]{40}", "e2b_" + body(40, HEX), checks=("start", "end")),
    token("DAYTONA_KEY", r"dtn_[0-9a-f]{40,}", "dtn_" + body(64, HEX)),
)

CLOUDS = (
    token(
        "AWS_KEY_ID",
        r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}",
        "AKIA" + body(16, B32),
        "ASIA" + body(16, "Z7Y6X5W4"),
        "A3" + "TX" + body(16, "Q7Y6X5W4"),
        checks=("start", "end", "not_example"),
        negatives=("AKIA" + "IOSFODNN7EXAMPLE", "AKIA" + "SHORT"),
        note="Documentation keys end in EXAMPLE.",
    ),
    vendor_rule(
        "AWS_SECRET_KEY",
        r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}[^\x00]{0,120}?"
        r"[^A-Za-z0-9/+\x00]([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+]|\z)",
        checks=("mixed",),
        positives=(
            ("AKIA" + body(9, B32) + "EXAMPLE\n" + body(40, _B64) + "\n", body(40, _B64)),
            ("id: AKIA" + body(9, B32) + "EXAMPLE, the other one: " + body(40, _B64), body(40, _B64)),
        ),
        negatives=("AKIA" + "SHORT " + body(40, HEX),),
        note="Forty characters without a form of their own, close behind a key id.",
    ),
    token("AWS_BEDROCK_KEY", r"ABSK[A-Za-z0-9+/]{60,}={0,2}", "ABSK" + body(120, _B64)),
    token(
        "AWS_BEDROCK_KEY",
        r"bedrock-api-key-[A-Za-z0-9+/]{20,}={0,2}",
        "bedrock-" + "api-key-" + body(100, _B64),
    ),
    vendor_rule(
        "AWS_SIGNATURE",
        r"(?i)signature=([0-9a-f]{64})",
        checks=("end",),
        positives=(
            ("https://b.s3.amazonaws.com/k?X-Amz-Signature=" + body(64, HEX), body(64, HEX)),
            ("SignedHeaders=host, Signature=" + body(64, HEX), body(64, HEX)),
        ),
    ),
    token("GOOGLE_KEY", r"AIza[A-Za-z0-9_-]{35,}", "AIza" + body(35, _MIXED)),
    token("GOOGLE_TOKEN", r"ya29\.[A-Za-z0-9_-]{20,}", "ya29." + body(60, _MIXED)),
    token("GOOGLE_CLIENT_SECRET", r"GOCSPX-[A-Za-z0-9_-]{28}", "GOCSPX-" + body(28)),
    token(
        "GOOGLE_REFRESH_TOKEN",
        r"1//0[A-Za-z0-9_-]{38,}",
        "1//0" + body(60, _MIXED),
        checks=("start", "dense"),
        negatives=("http://127.0.0.1//0",),
    ),
    token(
        "AZURE_SECRET",
        r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}",
        body(3) + "8Q" + "~" + body(34, _MIXED),
        checks=("start", "trim_prose"),
    ),
    vendor_rule(
        "AZURE_KEY",
        r"(?i)(?:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{40,}={0,2})",
        positives=(
            ("AccountName=a;AccountKey=" + body(86, _B64) + "==;EndpointSuffix=x", body(86, _B64) + "=="),
            ("SharedAccessKey=" + body(43, _B64) + "=", body(43, _B64) + "="),
        ),
        negatives=("AccountKey=<key>",),
    ),
    vendor_rule(
        "AZURE_SAS",
        r"[?&;]sig=((?:[A-Za-z0-9/+_-]|%2[fFbB]){32,}(?:=|%3[dD]){0,2})",
        positives=(
            ("https://a.blob.core.windows.net/c?sv=1&sig=" + body(43) + "%3D&se=2", body(43) + "%3D"),
            ("SharedAccessSignature sr=x&sig=" + body(43, _B64) + "=&se=1", body(43, _B64) + "="),
        ),
        negatives=("?sig=short&x=1",),
    ),
    vendor_rule(
        "AZURE_DEVOPS_TOKEN",
        r"(?i)(?:azure|devops|vsts|\bado\b|\btfs\b)[^\x00\n]{0,40}?[^A-Za-z0-9\x00]([a-z0-9]{52})(?:[^A-Za-z0-9]|\z)",
        checks=("digit",),
        positives=(("azure devops pat: " + body(52, B32.lower()), body(52, B32.lower())),),
        note="Fifty-two letters and digits, only beside the product's name.",
    ),
)

CODE_HOSTS = (
    token("AZURE_DEVOPS_TOKEN", r"[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}", body(76) + "AZDO" + body(4)),
    token(
        "GITHUB_TOKEN",
        r"gh[pousr]_[A-Za-z0-9_]{36,}",
        "ghp_" + body(36),
        "gho_" + body(36),
        "ghs_" + body(40),
        checks=("start", "dense"),
        negatives=("ghp_short", "the ghp_token_name_of_the_setting_is_long_enough"),
    ),
    token("GITHUB_TOKEN", r"github_pat_[A-Za-z0-9_]{36,}", "github_" + "pat_" + body(22) + "_" + body(59)),
    token(
        "GITLAB_TOKEN",
        r"gl(?:pat|ptt|dt|rt|rtr|cbt|ft|imt|agent|oas|soat|ffct)-[A-Za-z0-9_-]{20,}"
        r"(?:\.[0-9a-z]{2}\.[0-9a-z]{7,9}|\.[0-9a-z]{9}\b)?",
        "glpat-" + body(20),
        "glrt-" + body(26),
        "glpat-" + body(27) + ".01." + body(9, HEX),
        "glrt-t1_" + body(27) + "." + body(9, HEX),
        checks=("start", "telling"),
        negatives=("glpat-your-token-goes-here-please",),
    ),
    token("GITLAB_TOKEN", r"GR1348941[A-Za-z0-9_-]{20,}", "GR1348941" + body(20)),
    token("BITBUCKET_TOKEN", r"ATBB[A-Za-z0-9_=]{32,}", "ATBB" + body(32)),
    token("ATLASSIAN_TOKEN", r"ATATT3[A-Za-z0-9_=-]{60,}", "ATATT3" + body(180, _MIXED)),
    token("NPM_TOKEN", r"npm_[A-Za-z0-9]{36,}", "npm_" + body(36), negatives=("npm_config_registry",)),
    token("PYPI_TOKEN", r"pypi-AgE[A-Za-z0-9_-]{50,}", "pypi-" + "AgEIcHlwaS5vcmc" + body(140, _MIXED)),
    token("RUBYGEMS_KEY", r"rubygems_[0-9a-f]{48}", "rubygems_" + body(48, HEX), checks=("start", "end")),
    token("DOCKER_TOKEN", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{27,}", "dckr_" + "pat_" + body(27)),
    token("SOURCEGRAPH_TOKEN", r"sgp_(?:[0-9a-fA-F]{16}_|local_)?[0-9a-fA-F]{40}", "sgp_" + body(40, HEX)),
    token("BUILDKITE_TOKEN", r"bkua_[0-9a-f]{40}", "bkua_" + body(40, HEX)),
)

TOKENS = (
    token(
        "JWT",
        r"eyJ[A-Za-z0-9_-]{8,}\.(?:[A-Za-z0-9_-]{2,}|\.[A-Za-z0-9_-]+)(?:\.[A-Za-z0-9_-]+){0,3}",
        _JWT,
        _JWT + "." + body(40) + "." + body(22),
        checks=("start", "jwt_header"),
        negatives=("eyJust.some.words", "the file eyJournal_of_days.txt"),
    ),
    token(
        "NATS_SEED",
        r"S[UAONCX][A-Z2-7]{56}",
        "SU" + body(56, B32),
        "SO" + body(56, B32),
        checks=("start", "end"),
        negatives=("SU" + body(80, B32),),
    ),
    token(
        "AGE_KEY",
        r"(?:AGE-SECRET-KEY-1[A-Z0-9]{58}|age-secret-key-1[a-z0-9]{58})",
        "AGE-SECRET-" + "KEY-1" + body(58, B32),
    ),
)

RULES: tuple[Rule, ...] = (*MODELS, *CLOUDS, *CODE_HOSTS, *TOKENS)
