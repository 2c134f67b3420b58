"""Layer 1: tokens that a vendor's own form gives away.

No pattern has a left boundary: the check ``start`` knows where a token may begin, which RE2 cannot say.
"""

from __future__ import annotations

from onward.capture.redaction.rule import B32, HEX, Rule, body, whole

_JWT = "eyJhbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0In0" + "." + body(43)

RULES: tuple[Rule, ...] = (
    Rule(
        "ANTHROPIC_KEY",
        r"sk-ant-[A-Za-z0-9_-]{20,}",
        1,
        checks=("start",),
        positives=whole("sk-" + "ant-api03-" + body(93) + "AA", "sk-" + "ant-oat01-" + body(60)),
        negatives=("sk-" + "ant-short", "task-ant-colony-optimisation-with-many-ants"),
    ),
    Rule(
        "OPENROUTER_KEY",
        r"sk-or-v1-[0-9a-f]{32,}",
        1,
        checks=("start",),
        positives=whole("sk-" + "or-v1-" + body(64, HEX)),
    ),
    Rule(
        "OPENAI_KEY",
        r"sk-[A-Za-z0-9_-]{20,}",
        1,
        checks=("start", "dense"),
        positives=whole(
            "sk-" + "proj-" + body(74) + "T3" + "BlbkFJ" + body(74),
            "sk-" + body(20) + "T3" + "BlbkFJ" + body(20),
            "sk-" + "a" * 40,
            "sk-" + "svcacct-" + body(50) + "-_" + body(20),
        ),
        negatives=(
            "the risk-adjusted-return-of-the-portfolio",
            "<task-notification-for-the-user>",
            "sk-learn-pipeline-with-many-steps",
        ),
    ),
    Rule(
        "GITHUB_TOKEN",
        r"gh[pousr]_[A-Za-z0-9]{36,}",
        1,
        checks=("start",),
        positives=whole("ghp_" + body(36), "gho_" + body(36), "ghs_" + body(40)),
        negatives=("ghp_short", "the ghp_token_name_of_the_setting_is_long_enough"),
    ),
    Rule(
        "GITHUB_TOKEN",
        r"github_pat_[A-Za-z0-9_]{36,}",
        1,
        checks=("start",),
        positives=whole("github_" + "pat_" + body(22) + "_" + body(59)),
    ),
    Rule(
        "GITLAB_TOKEN",
        r"gl(?:pat|ptt|dt|rt|cbt|ft|imt|agent|oas|soat)-[A-Za-z0-9_-]{20,}",
        1,
        checks=("start", "dense"),
        positives=whole("glpat-" + body(20), "glrt-" + body(26)),
    ),
    Rule(
        "AWS_KEY_ID",
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
        1,
        checks=("start", "end", "not_example"),
        positives=whole("AKIA" + body(16, B32), "ASIA" + body(16, "Z7Y6X5W4")),
        negatives=("AKIA" + "IOSFODNN7EXAMPLE", "AKIA" + "SHORT"),
        note="Documentation keys end in EXAMPLE.",
    ),
    Rule(
        "GOOGLE_KEY",
        r"AIza[A-Za-z0-9_-]{35,}",
        1,
        checks=("start",),
        positives=whole("AIza" + body(35)),
    ),
    Rule(
        "GOOGLE_TOKEN",
        r"ya29\.[A-Za-z0-9_-]{20,}",
        1,
        checks=("start",),
        positives=whole("ya29." + body(60)),
    ),
    Rule(
        "GOOGLE_CLIENT_SECRET",
        r"GOCSPX-[A-Za-z0-9_-]{28}",
        1,
        checks=("start",),
        positives=whole("GOCSPX-" + body(28)),
    ),
    Rule(
        "SLACK_TOKEN",
        r"xox[abeprs]-[A-Za-z0-9-]{10,}",
        1,
        checks=("start", "digit"),
        positives=whole("xoxb-" + "123456789012-1234567890123-" + body(24)),
        negatives=("xoxb-token-goes-here",),
    ),
    Rule(
        "SLACK_TOKEN",
        r"xapp-[0-9]-[A-Za-z0-9-]{10,}",
        1,
        checks=("start",),
        positives=whole("xapp-" + "1-A0123456789-1234567890-" + body(40, HEX)),
    ),
    Rule(
        "SLACK_WEBHOOK",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{20,})",
        1,
        take="group",
        checks=("digit",),
        positives=(
            (
                "post to https://hooks.slack." + "com/services/T01234567/B01234567/" + body(24),
                "T01234567/B01234567/" + body(24),
            ),
        ),
    ),
    Rule(
        "HF_TOKEN",
        r"hf_[A-Za-z0-9]{30,}",
        1,
        checks=("start",),
        positives=whole("hf_" + body(34)),
        negatives=("hf_hub_download and hf_transfer",),
    ),
    Rule(
        "STRIPE_KEY",
        r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{16,}",
        1,
        checks=("start",),
        positives=whole("sk_" + "live_" + body(24), "rk_" + "test_" + body(99)),
        negatives=("sk_" + "test_mode_is_on_for_this_account",),
    ),
    Rule(
        "STRIPE_KEY",
        r"whsec_[A-Za-z0-9+/]{24,}={0,2}",
        1,
        checks=("start",),
        positives=whole("whsec_" + body(32)),
    ),
    Rule(
        "NPM_TOKEN",
        r"npm_[A-Za-z0-9]{36,}",
        1,
        checks=("start",),
        positives=whole("npm_" + body(36)),
        negatives=("npm_config_registry",),
    ),
    Rule(
        "PYPI_TOKEN",
        r"pypi-AgE[A-Za-z0-9_-]{50,}",
        1,
        checks=("start",),
        positives=whole("pypi-" + "AgEIcHlwaS5vcmc" + body(140)),
    ),
    Rule(
        "NATS_SEED",
        r"S[UAONCX][A-Z2-7]{56}",
        1,
        checks=("start", "end"),
        positives=whole("SU" + body(56, B32)),
        negatives=("SU" + body(80, B32),),
    ),
    Rule(
        "JWT",
        r"eyJ[A-Za-z0-9_-]{8,}\.(?:[A-Za-z0-9_-]{2,}|\.[A-Za-z0-9_-]+)(?:\.[A-Za-z0-9_-]+){0,3}",
        1,
        checks=("start", "jwt_header"),
        positives=whole(_JWT),
        negatives=("eyJust.some.words", "the file eyJournal_of_days.txt"),
    ),
)
