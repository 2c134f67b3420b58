"""Layer 1, third part: tokens of package hosts, commerce, monitoring and social services, hashes of
passwords."""

from __future__ import annotations

from onward.redaction.rule import HEX, Rule, body, token, vendor_rule

_MIXED = "aB3dE5fG7_hJ9k-LmN2pQr"
_UPPER = "A2C4E6G8J0KLMNPQ"
_UUID = "-".join(body(size, HEX) for size in (8, 4, 4, 4, 12))
_RUNS = r"[0-9a-fA-F]{32}[-:]|[0-9]{13}(?:\||%7)"
_MAPBOX = r"[ps]k\.[A-Za-z0-9]{60}|(?:live|sandbox)_[A-Za-z0-9]{40}"

PACKAGES = (
    token(
        "NUGET_KEY", r"oy2[a-z0-9]{40,46}", "oy2" + body(43, "a3b5c7d9ef"), checks=("start", "end", "digit")
    ),
    token("JFROG_KEY", r"AKCp[A-Za-z0-9]{55,80}", "AKCp" + body(69), checks=("start", "mixed")),
    token(
        "JFROG_KEY", r"cmVmdGtu[A-Za-z0-9+/]{48,80}={0,2}", "cmVmdGtu" + body(56), checks=("start", "mixed")
    ),
    token("JFROG_KEY", r"AKC(?:[a-z0-9]{10,}|[A-Za-z0-9]{37,})", "AKC" + body(40), "AKC" + "z" * 10),
    token(
        "JFROG_KEY",
        r"AKC[A-Za-z0-9]{10,}",
        "AKC" + body(20),
        checks=("start", "mixed"),
        negatives=("the AKCELERATION1 and AKCELERATION2X models",),
    ),
    vendor_rule(
        "JFROG_KEY",
        r"(?i)(?:jfrog|artif)[^\x00]{0,24}?[^A-Za-z0-9\x00](AP[0-9A-F][A-Za-z0-9]{8,})",
        positives=(("artifactory_secret: AP6" + body(20), "AP6" + body(20)),),
        negatives=("artifact of the API and jfrog APIs",),
        gate=r"(?i)jfrog|artif",
    ),
    token("SONARQUBE_TOKEN", r"sq[upa]_[0-9a-f]{40}", "squ_" + body(40, HEX), checks=("start", "end")),
    token("GITLAB_TOKEN", r"glwt-[A-Za-z0-9_-]{20,}", "glwt-" + body(20), checks=("start", "telling")),
    token("WUNDERGRAPH_TOKEN", r"cosmo_[0-9a-f]{32}", "cosmo_" + body(32, HEX), checks=("start", "end")),
    token("POSTMAN_KEY", r"PMAT-[A-Z0-9]{26}", "PMAT-" + body(26, _UPPER), checks=("start", "end")),
    token("CRATES_TOKEN", r"cio[A-Za-z0-9]{32}", "cio" + body(32), checks=("start", "end", "mixed")),
    token("HEX_PM_TOKEN", r"hexpm_[0-9a-f]{32,}", "hexpm_" + body(32, HEX)),
    token(
        "SNYK_TOKEN",
        r"snyk_(?:uat|sat)\.[A-Za-z0-9._-]{24,}",
        "snyk_" + "uat." + body(40),
        checks=("start", "trim_prose"),
    ),
    token("CODACY_TOKEN", r"codacy_[A-Za-z0-9_-]{32,}", "codacy_" + body(32), checks=("start", "drawn")),
)

CLOUDS = (
    token("CLOUDFLARE_KEY", r"cfk_[A-Za-z0-9]{37,}", "cfk_" + body(45), checks=("start", "mixed")),
    vendor_rule(
        "SOFTLAYER_KEY",
        r"softlayer\.com/(?:soap|rest)/v3(?:\.1)?/([0-9a-f]{64})",
        positives=(("https://api.softlayer.com/soap/v3.1/" + body(64, HEX), body(64, HEX)),),
    ),
    token("AKAMAI_TOKEN", r"akab-[a-z0-9]{16}-[a-z0-9]{16}", "akab-" + body(16, HEX) + "-" + body(16, HEX)),
    token("AWS_MWS_TOKEN", r"amzn\.mws\.[0-9a-f]{8}-[0-9a-f-]{27}", "amzn." + "mws." + _UUID),
    token(
        "DEFINED_NETWORKING_TOKEN",
        r"dnkey-[A-Za-z0-9=_-]{26}-[A-Za-z0-9=_-]{52}",
        "dnkey-" + body(26, _UPPER) + "-" + body(52, _UPPER),
    ),
    token("VERCEL_TOKEN", r"vercel_blob_rw_[A-Za-z0-9_]{30,}", "vercel_" + "blob_rw_" + body(48)),
    token("SCALEWAY_KEY", r"SCW[A-Z0-9]{17}", "SCW" + body(17, _UPPER), checks=("start", "end", "digit")),
    token("YANDEX_TOKEN", r"y0_[A-Za-z0-9_-]{50,}", "y0_" + body(58), checks=("start", "mixed")),
    token("YANDEX_TOKEN", r"AQVN[A-Za-z0-9_-]{35,38}", "AQVN" + body(36, _MIXED), checks=("start", "mixed")),
    token("AIVEN_TOKEN", r"AVNS_[A-Za-z0-9_-]{19,}", "AVNS_" + body(19), checks=("start", "mixed")),
    token("CONFLUENT_SECRET", r"cflt[A-Za-z0-9+/]{60}", "cflt" + body(60), checks=("start", "mixed")),
)

MONITORING = (
    token("NEWRELIC_KEY", r"NRJS-[0-9a-f]{19}", "NRJS-" + body(19, HEX), checks=("start", "end")),
    token(
        "NEWRELIC_KEY",
        r"[0-9a-f]{36}(?:NRAL|FFFFNRAL)",
        body(36, HEX) + "NRAL",
        checks=("start", "end"),
        gate="",
    ),
    token("POSTHOG_KEY", r"ph[srx]_[A-Za-z0-9]{40,}", "phs_" + body(43), checks=("start", "mixed")),
    vendor_rule(
        "SENTRY_DSN",
        r"https?://([0-9a-f]{32}(?::[0-9a-f]{32})?)@[a-z0-9.-]{1,60}/[0-9]",
        positives=(("https://" + body(32, HEX) + "@o1.ingest.sentry.io/12", body(32, HEX)),),
        negatives=("https://abcdef@host/1",),
    ),
    token("HONEYCOMB_KEY", r"hc[abx][il][kc]_[A-Za-z0-9]{58}", "hcaik_" + body(58)),
    token("PAGERDUTY_KEY", r"pdus[+]_[A-Za-z0-9_-]{20,}", "pdus+" + "_" + body(24)),
)

COMMERCE = (
    token(
        "PAYPAL_TOKEN",
        r"access_token\$(?:production|sandbox)\$[a-z0-9]{16}\$[0-9a-f]{32}",
        "access_" + "token$production$" + body(16, HEX) + "$" + body(32, HEX),
    ),
    token(
        "MAILGUN_KEY",
        r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}",
        body(32, HEX) + "-" + body(8, HEX) + "-" + body(8, HEX),
        checks=("start", "end", "not_uuid"),
        gate=_RUNS,
        negatives=(body(32, HEX) + "-" + body(8, HEX) + "-" + body(8, HEX) + "-x1",),
    ),
    token("ADYEN_KEY", r"AQE[A-Za-z0-9][A-Za-z0-9+/=-]{80,}", "AQEh" + body(120), checks=("start", "mixed")),
    token(
        "PLAID_TOKEN",
        r"access-(?:sandbox|development|production)-[0-9a-f]{8}-[0-9a-f-]{27}",
        "access-" + "sandbox-" + _UUID,
    ),
    token(
        "COINBASE_KEY",
        r"organizations/[0-9a-f-]{36}/apiKeys/[0-9a-f-]{36}",
        "organizations/" + _UUID + "/apiKeys/" + _UUID,
    ),
)

SOCIAL = (
    token("ADOBE_SECRET", r"p8e-[A-Za-z0-9]{32}", "p8e-" + body(32), checks=("start", "end", "digit")),
    token(
        "AUTHRESS_KEY",
        r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}"
        r"\.[A-Za-z0-9+/_=-]{30,120}",
        "sc_" + body(10) + "." + body(4) + ".acc_" + body(12) + "." + body(40),
        gate="",
    ),
    token(
        "MAXMIND_KEY",
        r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk",
        body(6) + "_" + body(29) + "_mmk",
        checks=("start", "end"),
        gate="",
    ),
    token(
        "MAPBOX_TOKEN",
        r"[ps]k\.[A-Za-z0-9]{60}\.[A-Za-z0-9]{22}",
        "sk." + body(60) + "." + body(22),
        gate=_MAPBOX,
    ),
    token(
        "MAPBOX_TOKEN",
        r"[ps]k\.eyJ1Ijoi[A-Za-z0-9_-]{30,}\.[A-Za-z0-9_-]{20,}",
        "pk." + "eyJ1Ijoi" + body(60) + "." + body(22),
        gate="",
    ),
    token("JWT", r"ZXlK[A-Za-z0-9+/_-]{40,}={0,2}", "ZXlK" + body(80), checks=("start", "mixed")),
    token(
        "GOCARDLESS_TOKEN",
        r"(?:live|sandbox)_[A-Za-z0-9]{40}",
        "live_" + body(40),
        checks=("start", "end", "digit"),
        gate=_MAPBOX,
    ),
    vendor_rule(
        "SIDEKIQ_LOGIN",
        r"(?:ENTERPRISE|GEMS)__CONTRIBSYS__COM[ ]?[=:][ ]?[\"']?([A-Za-z0-9]{8}:[A-Za-z0-9]{8})",
        positives=(
            (
                "BUNDLE_GEMS__CONTRIBSYS__COM=" + body(8, HEX) + ":" + body(8, HEX),
                body(8, HEX) + ":" + body(8, HEX),
            ),
        ),
        gate="",
    ),
    token(
        "DROPBOX_TOKEN",
        r"sl\.(?:u\.)?[A-Za-z0-9_=-]{80,}",
        "sl." + body(136, _MIXED),
        checks=("start", "mixed"),
    ),
    token("INSTAGRAM_TOKEN", r"IGQ[A-Z][A-Za-z0-9_-]{60,}", "IGQV" + body(120), checks=("start", "mixed")),
    token(
        "TWITTER_TOKEN",
        r"AAAAAAAAAAAAAAA(?:[A-Za-z0-9+/=_-]|%(?:3[Dd]|2[BbFf])){64,216}",
        "A" * 22 + body(12) + "AAAAAA" + body(20) + "%3D" + body(50),
        checks=("start", "mixed", "not_padding"),
        negatives=("A" * 200,),
    ),
    token(
        "FACEBOOK_TOKEN",
        r"[0-9]{13,17}(?:\||%7C|%7c)[A-Za-z0-9_-]{26,32}",
        "1527" + "19462435827" + "|" + body(27),
        gate=_RUNS,
        checks=("start", "end", "mixed"),
    ),
    token(
        "SALESFORCE_SESSION",
        r"00D[A-Za-z0-9]{12,15}![A-Za-z0-9._]{60,}",
        "00D" + body(15, _UPPER) + "!AR8" + body(90),
        checks=("start", "trim_prose"),
    ),
    token(
        "TWITCH_TOKEN",
        r"oauth:[a-z0-9]{30}",
        "oauth:" + body(30, "a3b5c7d9ef"),
        checks=("start", "end", "digit"),
    ),
)

HASHES = (
    vendor_rule(
        "NTLM_MESSAGE",
        r"(TlRMTVNTUAA[A-Za-z0-9+/]{40,}={0,2})",
        checks=("start",),
        positives=(("NTLM TlRMTVNTUAAD" + body(80), "TlRMTVNTUAAD" + body(80)),),
        negatives=("TlRMTVNTUAA",),
        gate="",
        note="Type 1 to 3 messages of NTLM: type 3 holds the answer to the challenge.",
    ),
    vendor_rule(
        "PASSWORD_HASH",
        r"(\$(?:1|2[abxy]|5|6|7|y|gy|apr1|argon2(?:i|d|id)|scrypt|pbkdf2[a-z0-9-]{0,12})\$[A-Za-z0-9./+=,$-]{20,200})",
        checks=("mixed", "trim_prose"),
        positives=(
            ("ada:" + "$6$" + body(12) + "$" + body(86) + ":19000:", "$6$" + body(12) + "$" + body(86)),
            ("hash " + "$2b$12$" + body(53) + ".", "$2b$12$" + body(53)),
            (
                "$argon2id$v=19$m=65536,t=3,p=4$" + body(22) + "$" + body(43),
                "$argon2id$v=19$m=65536,t=3,p=4$" + body(22) + "$" + body(43),
            ),
        ),
        negatives=("costs $1$ and $6$ each", "replace with $1$2_the_Second_group_of_the_match"),
        gate="",
        note="crypt(3), bcrypt and Argon2, as in /etc/shadow and .htpasswd.",
    ),
    vendor_rule(
        "PASSWORD_HASH",
        r"(?:[A-Za-z0-9_.$-]{1,32}:[0-9]{1,6}|\b(?i:ntlm|nthash|lmhash|hashes))"
        r"[: ]{1,2}([0-9a-fA-F]{32}:[0-9a-fA-F]{32})",
        positives=(
            (
                "Administrator:500:" + body(32, HEX) + ":" + body(32, HEX) + ":::",
                body(32, HEX) + ":" + body(32, HEX),
            ),
        ),
        note="A dump of Windows' accounts.",
        gate=_RUNS,
    ),
)

RULES: tuple[Rule, ...] = (*PACKAGES, *CLOUDS, *MONITORING, *COMMERCE, *SOCIAL, *HASHES)
