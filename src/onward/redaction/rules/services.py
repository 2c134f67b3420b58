"""Layer 1, second part: tokens of chat, payment, mail and infrastructure services."""

from __future__ import annotations

from onward.redaction.rule import HEX, Rule, body, token, vendor_rule

_MIXED = "aB3dE5fG7_hJ9k-LmN2pQr"
_B64 = "aB3dE5fG7+hJ9k/LmN2pQr"
_UPPER = "A2C4E6G8J0KLMNPQ"

CHAT = (
    token(
        "SLACK_TOKEN",
        r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}",
        "xoxb-" + "123456789012-1234567890123-" + body(24),
        "xoxe." + "xoxp-1-" + body(40),
        checks=("start", "digit"),
        negatives=("xoxb-token-goes-here",),
    ),
    token(
        "SLACK_TOKEN",
        r"xapp-[0-9]{1,4}-[A-Za-z0-9-]{10,}",
        "xapp-" + "1-A0123456789-1234567890-" + body(40, HEX),
    ),
    token(
        "SLACK_TOKEN",
        r"xoxd-(?:[A-Za-z0-9+/_=-]|%2[BbFf]|%3[Dd]){32,}",
        "xoxd-" + body(40) + "%2B" + body(40) + "%3D",
        checks=("start", "telling"),
    ),
    vendor_rule(
        "SLACK_WEBHOOK",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{20,})",
        checks=("digit",),
        positives=(
            (
                "post to https://hooks.slack." + "com/services/T01234567/B01234567/" + body(24),
                "T01234567/B01234567/" + body(24),
            ),
        ),
    ),
    vendor_rule(
        "DISCORD_WEBHOOK",
        r"discord(?:app)?\.com/api/(?:v[0-9]{1,2}/)?webhooks/([0-9]{15,21}/[A-Za-z0-9_-]{40,})",
        positives=(
            (
                "https://discord.com/api/" + "webhooks/112233445566778899/" + body(68),
                "112233445566778899/" + body(68),
            ),
        ),
    ),
    token(
        "DISCORD_TOKEN",
        r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
        "MTk4NjIyNDgzNDcxOTI1MjQ4" + "." + body(6) + "." + body(38, _MIXED),
        checks=("start", "mixed"),
        negatives=("Namespace-of-the-longest-x.method.and-a-very-long-name-of-it",),
    ),
    token(
        "TELEGRAM_TOKEN",
        r"[0-9]{8,10}:[A-Za-z0-9_-]{35}",
        "123456789" + ":AA" + body(33, _MIXED),
        checks=("start", "end", "mixed"),
    ),
    vendor_rule(
        "TEAMS_WEBHOOK",
        r"webhook\.office\.com/webhookb2/[0-9a-f@-]{60,80}/IncomingWebhook/([0-9a-f]{32}/[0-9a-f-]{36})",
        positives=(
            (
                "https://x.webhook.office."
                + "com/webhookb2/"
                + body(73, HEX)
                + "/IncomingWebhook/"
                + body(32, HEX)
                + "/"
                + body(36, HEX),
                body(32, HEX) + "/" + body(36, HEX),
            ),
        ),
    ),
)

MONEY_AND_MAIL = (
    token(
        "STRIPE_KEY",
        r"(?:sk|rk|pk)_(?:live|test|prod)_[A-Za-z0-9]{16,}",
        "sk_" + "live_" + body(24),
        "rk_" + "test_" + body(99),
        negatives=("sk_" + "test_mode_is_on_for_this_account",),
    ),
    token("STRIPE_KEY", r"whsec_[A-Za-z0-9+/]{24,}={0,2}", "whsec_" + body(32)),
    token(
        "SQUARE_TOKEN",
        r"sq0[a-z]{3}-[A-Za-z0-9_-]{22,}",
        "sq0" + "atp-" + body(22),
        checks=("start", "dense"),
    ),
    token(
        "SHOPIFY_TOKEN",
        r"shp(?:at|ca|pa|ss|ua)_[0-9a-fA-F]{32}",
        "shp" + "at_" + body(32, HEX),
        "shp" + "ss_" + body(32, HEX),
    ),
    token(
        "TWILIO_KEY",
        r"SK(?:[0-9a-z]{32}|[0-9A-Fa-f]{32})",
        "SK" + body(32, HEX),
        "SK" + body(32, HEX).upper(),
        checks=("start", "end"),
    ),
    token(
        "TWILIO_ACCOUNT", r"AC(?:[0-9a-z]{32}|[0-9A-Fa-f]{32})", "AC" + body(32, HEX), checks=("start", "end")
    ),
    token(
        "SENDGRID_KEY",
        r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}",
        "SG." + body(22, _MIXED) + "." + body(43, _MIXED),
    ),
    token("MAILGUN_KEY", r"key-[0-9a-f]{32}", "key-" + body(32, HEX), checks=("start", "end")),
    token(
        "MAILCHIMP_KEY", r"[0-9a-z]{32}-us[0-9]{1,2}", body(32, HEX) + "-us" + "12", checks=("start", "end")
    ),
    token(
        "BREVO_KEY", r"xkeysib-[0-9a-fA-F]{64}-[A-Za-z0-9]{16}", "xkeysib-" + body(64, HEX) + "-" + body(16)
    ),
)

INFRASTRUCTURE = (
    token(
        "DATABRICKS_TOKEN", r"dapi[0-9a-f]{32}(?:-[0-9])?", "dapi" + body(32, HEX), checks=("start", "end")
    ),
    token(
        "DIGITALOCEAN_TOKEN",
        r"do[opr]_v1_[0-9a-f]{64}",
        "dop_" + "v1_" + body(64, HEX),
        "doo_" + "v1_" + body(64, HEX),
    ),
    token(
        "VAULT_TOKEN",
        r"hv[sbr]\.[A-Za-z0-9_-]{24,}",
        "hvs." + body(90, _MIXED),
        "hvb." + body(140, _MIXED),
        checks=("start", "dense"),
    ),
    token("VAULT_TOKEN", r"s\.[A-Za-z0-9]{24}", "s." + body(24), checks=("start", "end", "mixed")),
    token("GRAFANA_TOKEN", r"glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}", "glsa_" + body(32) + "_" + body(8, HEX)),
    token("GRAFANA_TOKEN", r"glc_[A-Za-z0-9+/]{32,}={0,2}", "glc_" + body(64, _B64)),
    token("GRAFANA_TOKEN", r"eyJrIjoi[A-Za-z0-9+/_-]{40,}={0,2}", "eyJrIjoi" + body(80)),
    token("SENTRY_TOKEN", r"sntryu_[0-9a-f]{64}", "sntryu_" + body(64, HEX)),
    token("SENTRY_TOKEN", r"sntrys_[A-Za-z0-9+/=_-]{40,}", "sntrys_" + "eyJ" + body(140, _MIXED)),
    token("NOTION_TOKEN", r"ntn_[A-Za-z0-9]{40,}", "ntn_" + body(46)),
    token("NOTION_TOKEN", r"secret_[A-Za-z0-9]{43}", "secret_" + body(43), checks=("start", "end", "mixed")),
    token("LINEAR_KEY", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}", "lin_" + "api_" + body(40)),
    token("ONEPASSWORD_TOKEN", r"ops_eyJ[A-Za-z0-9+/_-]{40,}={0,3}", "ops_" + "eyJ" + body(250, _MIXED)),
    token(
        "ONEPASSWORD_KEY",
        r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}",
        "A3-" + "-".join(body(size, _UPPER) for size in (6, 11, 5, 5, 5)),
        "A3-" + "-".join(body(size, _UPPER) for size in (6, 6, 5, 5, 5, 5)),
    ),
    token(
        "SUPABASE_TOKEN",
        r"sb(?:p|s|_secret)_[A-Za-z0-9_-]{36,}",
        "sbp_" + body(40, HEX),
        checks=("start", "dense"),
    ),
    token("HEROKU_KEY", r"HRKU-[A-Za-z0-9_-]{36,}", "HRKU-" + "AA" + body(58, _MIXED)),
    token("NETLIFY_TOKEN", r"nfp_[A-Za-z0-9]{36,}", "nfp_" + body(36)),
    token("FLY_TOKEN", r"fo1_[A-Za-z0-9_-]{40,}", "fo1_" + body(43)),
    token("FLY_TOKEN", r"fm[12][ar]?_[A-Za-z0-9+/]{100,}={0,3}", "fm2_" + body(120, _B64)),
    token("PULUMI_TOKEN", r"pul-[0-9a-f]{40}", "pul-" + body(40, HEX), checks=("start", "end")),
    token(
        "TERRAFORM_TOKEN",
        r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}",
        body(14) + ".atlas" + "v1." + body(67),
    ),
    token(
        "DOPPLER_TOKEN",
        r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}",
        "dp." + "pt." + body(43),
    ),
    token(
        "PLANETSCALE_TOKEN",
        r"pscale_(?:tkn|pw|oauth)_(?:[A-Za-z0-9=_-]|\.[A-Za-z0-9=_-]){31,}",
        "pscale_" + "tkn_" + body(43),
    ),
    token("NEWRELIC_KEY", r"NRAK-[A-Za-z0-9]{27}", "NRAK-" + body(27, _UPPER)),
    token(
        "DYNATRACE_TOKEN",
        r"dt0[cs][0-9]{2}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}",
        "dt0" + "c01." + body(24, _UPPER) + "." + body(64, _UPPER),
    ),
    token("POSTMAN_KEY", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}", "PMAK-" + body(24, HEX) + "-" + body(34, HEX)),
    token("FIGMA_TOKEN", r"fig[dour]_[A-Za-z0-9_-]{36,}", "figd_" + body(40), checks=("start", "dense")),
    token("AIRTABLE_TOKEN", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}", "pat" + body(14) + "." + body(64, HEX)),
    token(
        "ASANA_TOKEN",
        r"[0-9]/[0-9]{16}(?:/[0-9]{16})?:[0-9a-f]{32}",
        "1/1200000000000001" + ":" + body(32, HEX),
    ),
    token(
        "HUBSPOT_TOKEN",
        r"pat-(?:na|eu)[0-9]-[0-9a-f]{8}-[0-9a-f-]{27}",
        "pat-" + "na1-" + "-".join(body(n, HEX) for n in (8, 4, 4, 4, 12)),
    ),
    token("MONGODB_SECRET", r"mdb_sa_sk_[A-Za-z0-9_-]{40,}", "mdb_" + "sa_sk_" + body(40)),
    token("PREFECT_KEY", r"pn[ub]_[A-Za-z0-9]{36}", "pnu_" + body(36)),
    token(
        "TAILSCALE_KEY",
        r"tskey-[a-z]{3,12}-[A-Za-z0-9]{8,}(?:-[A-Za-z0-9]{16,})?",
        "tskey-" + "auth-" + body(17) + "-" + body(32),
        checks=("start", "dense"),
    ),
    token("CONTENTFUL_TOKEN", r"CFPAT-[A-Za-z0-9_-]{40,}", "CFPAT-" + body(43)),
    token("TYPEFORM_TOKEN", r"tfp_[A-Za-z0-9_=-]{44,}", "tfp_" + body(59)),
    token("ADAFRUIT_KEY", r"aio_[A-Za-z0-9]{28}", "aio_" + body(28)),
    token("ALIBABA_KEY_ID", r"LTAI[A-Za-z0-9]{17,21}", "LTAI" + body(20), checks=("start", "end", "digit")),
    token("TENCENT_KEY_ID", r"AKID[A-Za-z0-9]{32}", "AKID" + body(32), checks=("start", "end", "digit")),
    token("FACEBOOK_TOKEN", r"EAA[MC][A-Za-z0-9]{60,}", "EAA" + "C" + body(120)),
    token("SQUARE_TOKEN", r"EAAA[A-Za-z0-9_-]{22,}", "EAAA" + body(60), checks=("start", "mixed")),
    token("DUFFEL_TOKEN", r"duffel_(?:test|live)_[A-Za-z0-9_=-]{43}", "duffel_" + "test_" + body(43)),
    token("EASYPOST_KEY", r"EZ[AT]K[A-Za-z0-9]{54}", "EZ" + "AK" + body(54)),
    token("README_KEY", r"rdme_[a-z0-9]{70}", "rdme_" + body(70, HEX)),
    token("SHIPPO_TOKEN", r"shippo_(?:live|test)_[0-9a-fA-F]{40}", "shippo_" + "live_" + body(40, HEX)),
    token(
        "FLUTTERWAVE_KEY",
        r"FLW(?:PUB|SEC)K_TEST-(?:[0-9a-h]{32}-X|[0-9a-z]{12}\b)",
        "FLW" + "SECK_TEST-" + body(32, HEX) + "-X",
        "FLW" + "SECK_TEST-" + body(12, HEX),
    ),
    token("INTRA42_SECRET", r"s-s4t2(?:ud|af)-[0-9a-f]{64}", "s-s4t2" + "ud-" + body(64, HEX)),
)

_PREFIXES = (
    r"AIK_(?:CI|CLIENT)_", r"STS\.", r"apify_api_", r"\$aact_prod_", r"BBDC-", r"bk[cp]t_", r"CCIPAT_",
    r"CLOJARS_",
    r"cf[ua]t_", r"v1\.0-[0-9a-f]{24}-", r"csa_", r"CCDB1_", r"configcat-sdk-1/", r"AstraCS:", r"dd[pw]_",
    r"dvc_(?:client|server|mobile)_", r"apk_(?:user_)?", r"cog_", r"SWM(?:TKN|KEY)-1-", r"essu_", r"fio-u-",
    r"AQ\.Ab", r"FlyV1 fm2_", r"[sp]at\.", r"ico-", r"ion_", r"lip_", r"llx-", r"mlsn\.",
    r"mercury_production_", r"napi_[A-Za-z0-9]{24}",
    r"mergify_application_key_", r"NRI[IQ]-", r"nyk_", r"API-", r"os_v2_(?:app|org)_",
    r"api_live(?:_ca|_us|_eu)?\.", r"sha256~", r"pdl_(?:live|sdbx)_apikey_",
    r"persona_(?:production|sandbox)_",
    r"pcsk_", r"pina_", r"polar_[a-z]{2,4}_", r"ph[xc]_", r"prf_", r"ramp_(?:id|sec)_", r"rzp_(?:live|test)_",
    r"rpa_", r"rnd_", r"re_[A-Za-z0-9]{8}_", r"rootly_", r"samsara_api_", r"tk-us-", r"sm_[aps]at_",
    r"xox[cd]-", r"tgp_v1_", r"unkey_", r"ucat_", r"vtwn_", r"vc[kapri]_", r"pa-", r"waka_",
    r"wandb_v1_", r"ls__", r"packagist_[a-z]{3,4}_",
    r"wrka[a-z]{2}-", r"xnd_(?:production|development)_", r"zpka_", r"pubkey-", r"scauth_", r"sk_car_",
    r"tss_",
)  # fmt: skip
"""Key prefixes of smaller services; the text after the prefix must look random."""
OTHERS = (
    token(
        "SERVICE_KEY",
        rf"(?:{'|'.join(_PREFIXES)})[A-Za-z0-9_=./+-]{{16,}}",
        "apify_" + "api_" + body(36),
        "phx_" + body(43),
        "wandb_" + "v1_" + body(77),
        "xnd_" + "production_" + body(64),
        "SWMTKN-" + "1-" + body(49, HEX) + "-" + body(25, HEX),
        "os_v2_" + "app_" + body(80, HEX),
        checks=("start", "drawn", "trim_prose"),
        gate=rf"(?:{'|'.join(_PREFIXES)})[A-Za-z0-9_=./+-]{{16}}",
        negatives=(
            "ion_drive_of_the_first_spaceship.py",
            "API-reference-of-the-second-Version2",
            "pa-tests/integration/test_the_v2_loader.py",
            "napi_create_external_arraybuffer_utf8",
            "cog_settings_for_the_bot_v2",
        ),
    ),
)

RULES: tuple[Rule, ...] = (*CHAT, *MONEY_AND_MAIL, *INFRASTRUCTURE, *OTHERS)
