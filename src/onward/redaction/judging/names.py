"""Decides which names govern a secret: ``db_password``, ``apiKey``, ``X-Auth-Token``; not ``max_tokens``.

A name is split into components (separators and camelCase) first, so that ``author`` is not ``auth`` and
``monkey`` is not ``key``. Counters, ids and settings of a secret (``password_file``) are not secrets.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

NameClass = Literal[
    "PASSWORD", "SECRET", "API_KEY", "TOKEN", "AUTHORIZATION", "COOKIE", "COOKIE_VALUE", "SESSION", "KEY",
    "PERSON", "ADDRESS", "PHONE", "NATIONAL_ID",
]  # fmt: skip
PERSONAL: frozenset[NameClass] = frozenset(("PERSON", "ADDRESS", "PHONE", "NATIONAL_ID"))
KIND: dict[NameClass, str] = {name: name for name in get_args(NameClass)}
KIND["COOKIE_VALUE"], KIND["KEY"] = "COOKIE", "API_KEY"
"""Placeholder kind for each class of name."""


def _classes(names: dict[NameClass, str]) -> dict[str, NameClass]:
    """Returns name → class; ``names`` has the names of a class, separated by commas."""
    return {name.strip(): kind for kind, listed in names.items() for name in listed.split(",")}


def _by_components(names: dict[NameClass, str]) -> dict[tuple[str, ...], NameClass]:
    return {tuple(name.split()): kind for name, kind in _classes(names).items()}


SINGLE = _classes(
    {
        "PASSWORD": """
            password, passwords, passwd, passphrase, passcode, pwd, pw, pswd, psw, passwort, kennwort, mdp,
            contraseña, contrasena, senha, wachtwoord, hasło, haslo, 密码, 口令, 비밀번호, пароль
        """,
        "SECRET": """
            pass, secret, secrets, credential, credentials, dsn, geheim, geheimnis, clave, secreto, secreta,
            segreto, segreta, segredo, sekret
        """,
        "API_KEY": "apikey",
        "TOKEN": "token, jwt, pat, bearer",
        "AUTHORIZATION": "auth, authorization",
        "COOKIE": "cookie, cookies",
        "SESSION": "session",
    }
)
PAIRS = _by_components(
    {
        "API_KEY": """
            api key, access key, account key, auth key, app key, application key, client key, consumer key,
            license key, storage key, ingestion key, write key, api hash, service key, subscription key,
            product key, activation key, server key, access code, api schlüssel, api schluessel, api
            sleutel, clé api, cle api, chiave api, chave api, klucz api
        """,
        "TOKEN": "api token",
        "SECRET": """
            master key, shared key, deploy key, ssh key, hmac key, webhook key, private key, secret key,
            signing key, encryption key, cipher key, crypto key, aes key, session key, root key, jwt key,
            connection string, conn str, nkey seed, privater schlüssel,
            privater schluessel, geheimer schlüssel, geheimer schluessel, clé privée, cle privee, clé secrète,
            cle secrete, chiave privata, chave privada, geheime sleutel, klucz prywatny
        """,
        "AUTHORIZATION": "http auth",
        "PASSWORD": """
            pass word, pass phrase, pass code, mot de passe, mot passe, parola d ordine, parola ordine,
            palavra passe
        """,
    }
)
"""Neighbouring components, two or three."""
ENDINGS = _classes(
    {
        "PASSWORD": "password, passwd, passphrase, passwort, kennwort, wachtwoord, motdepasse, pwd, pswd",
        "SECRET": "secret, privatekey, secretkey, clientsecret",
        "API_KEY": "apikey, accesskey, accountkey",
        "TOKEN": "authtoken, accesstoken, refreshtoken",
    }
)
_OWNER_WORDS = """
admin app bind cert client db email ftp http imap jdbc key keystore ldap login mail mongo my mysql oracle pg
pop postgres proxy rds rdp redis rabbitmq root service sftp smtp sql ssh ssl sudo svc svn test trust
truststore user username vnc vpn wifi win
"""
_OWNERS = frozenset(_OWNER_WORDS.split())
"""Words that form one component with ``pass`` or ``pw``: ``mysqlpass``, ``dbpw``; not ``bypass``."""
PERSONAL_NAMES = _by_components(
    {
        "PERSON": """
            first name, last name, middle name, full name, given name, family name, maiden name, birth name,
            legal name, sur name, patient name, customer name, employee name, contact name, cardholder name,
            holder name, recipient name, guest name, passenger name, applicant name, beneficiary name,
            billing name, shipping name, firstname, lastname, fullname, surname, forename, middlename,
            cardholder, givenname, familyname
        """,
        "ADDRESS": """
            street address, postal address, home address, mailing address, billing address, shipping address,
            delivery address, address line, address line1, address line2, address1, address2, address, street,
            street name, postcode, postal code, zipcode, zip code, residence
        """,
        "PHONE": """
            phone, phone number, telephone, telephone number, mobile number, cell number, fax number,
            mobile phone, cell phone, home phone, work phone, msisdn, phonenumber, contact number
        """,
        "NATIONAL_ID": """
            ssn, social security number, social security, passport number, passport no, national id,
            national insurance number, tax id, tax number, nino, driver license number, drivers license,
            license plate, aadhaar, cpf, personnummer, steuer id, nhs number, nhs no, pesel, bsn, tfn, rrn,
            itin, ahv, tax file number, social insurance number, codice fiscale, hetu, national number,
            resident registration number, burgerservicenummer
        """,
    }
)
"""Last components of names that govern personal data."""
_MAIL_AND_MACHINES = """
mac ip ipv4 ipv6 email mail memory bind listen listening remote local server host base web url wallet
contract socket peer source dest destination start end return jump virtual physical bus hardware network
broadcast gateway dns proxy endpoint node nats api from to reply bcc cc target
"""
NOT_PLACES = frozenset(_MAIL_AND_MACHINES.split())
"""Words before ``address`` that show that it is not a postal address."""
_BEFORE_EXEMPT_WORDS = """
max min total num n eos bos pad unk sep cls mask stop special next last first per avg mean each no is
has use prompt completion public
"""
BEFORE_EXEMPT = frozenset(_BEFORE_EXEMPT_WORDS.split())
_AFTER_EXEMPT_WORDS = """
count counts counter limit limits usage used budget id ids type types name names length len size url uri
endpoint host port file filename path dir expiry expires expired expiration ttl age field fields policy
rules required enabled disabled valid invalid strength hint prompt label regex pattern format void rate
cost price placeholder index position offset embedding method mode scheme status state error errors manager
provider
service store class flow time timeout date at help description version rotation duration start end
länge laenge datei longueur fichier longitud archivo lunghezza comprimento lengte
"""
AFTER_EXEMPT = frozenset(_AFTER_EXEMPT_WORDS.split())
_BEST_FIRST: tuple[NameClass, ...] = tuple(name for name in get_args(NameClass) if name not in PERSONAL)


_SERVICE_WORDS = """
adafruit adobe adyen ahrefs airtable aiven akamai alchemy algolia alibaba alicloud aliyun alphavantage
amadeus amplitude anthropic anyscale apify appcenter artifactory asana assemblyai atlassian auth0 authress
aws azure azureopenai backblaze beamer binance bing bitbucket bitly bittrex blockfrost brevo browserbase
browserstack bscscan bugsnag buildkite bunny calendly cerebras circleci clearbit clerk clickup cloudant
cloudflare cloudinary cloudsmith codacy codecov cohere coinbase coinmarketcap comet confluent contentful
coralogix cypress datadog daytona deepgram deepinfra deepl deepseek digitalocean discord docusign doppler
dropbox duffel dynatrace e2b easypost elastic elevenlabs etherscan etsy fastly figma finicity finnhub
firebase firecrawl fireworks flickr flutterwave flyio freemius freshdesk fullstory gandi gcp gemini giphy
github gitlab gocardless godaddy goodreads google googlemaps grafana groq harness helicone heroku hetzner
honeybadger honeycomb hubspot huggingface humio ibm iexcloud imgbb imgur infracost infura instana intercom
ipinfo ipstack jfrog jina jotform kaggle kickbox klaviyo kraken kucoin lambdalabs langfuse langsmith lastfm
launchdarkly lightstep linear linode litellm lob logdna loggly mailchimp mailerlite mailgun mailjet mandrill
mapbox maxmind meraki messagebird mistral mixpanel modal mollie moonshot moralis murf mux namecheap nasa
netlify newrelic newsapi nexmo ngrok notion novita npm nuget nvidia nytimes oci okta omdb onesignal openai
openrouter openstack openweather openweathermap opsgenie optimizely ovh packagist pagerduty papertrail
paypal paystack perplexity perplexityai pinata pinecone plaid planetscale playht plivo postman postmark
prefect pubnub pulumi pusher pypi quandl quicknode rackspace rapidapi raygun razorpay recaptcha replicate
resend revenuecat ringcentral roboflow rollbar rubygems runpod salesforce sap saucelabs scaleway scalr
scrapingbee sendbird sendgrid sendinblue sentry serpapi serper shippo shodan shopify sidekiq sl slack slapi
smtp2go snyk softlayer sonarqube sourcegraph splunk spotify square squarespace stabilityai statuspage
stormglass stripe stytch sumologic supabase tailscale tatum tavily telegram telnyx tencent terraform
textrazor tiingo tmdb todoist togetherai tomtom trello twilio twitch twitter typeform unsplash upstash
uptimerobot vercel virustotal vmware voyage vultr wandb watson weatherapi weaviate webflow wolframalpha
woocommerce workos wpscan xai yandex yelp youtube zapier zendesk zenrows zillow zoho zoom zuora
"""
SERVICES = frozenset(_SERVICE_WORDS.split())
"""Services whose keys are called ``<service>_key``. Other words before ``key`` (``user``, ``cursor``) name
records, whose keys are ids and hashes."""
_STAGES = frozenset(("live", "prod", "production", "staging", "sandbox", "test", "dev"))
_KEY_WORDS = frozenset(
    (
        "admin",
        "cloud",
        "developer",
        "iam",
        "integration",
        "licence",
        "recovery",
        "sdk",
        "unseal",
        "wifi",
        "wpa",
    )
)
"""Other words before ``key`` in names of secrets; those in ``PAIRS`` need no generated value."""
_LONGEST_LABEL = 120
_FORM_WORDS = frozenset(
    (
        "field",
        "input",
        "box",
        "textbox",
        "textfield",
        "textarea",
        "edit",
        "entry",
        "here",
        "value",
        "required",
        "css",
        "xpath",
    )
)
"""Words after a name in a label that name the place to type."""

_SAY_MORE_WORDS = """
forgot forgotten forget lost reset change show hide toggle recover remember save copy generate manage update
delete remove create revoke about why how what wrong weak strong link button page tab icon dialog title
"""
_SAY_MORE = frozenset(_SAY_MORE_WORDS.split())
"""Words that make a label the name of an action or a place."""


def components(name: str) -> list[str]:
    """Splits a name: ``"dbPassword"`` → ``["db", "password"]``; ``"X-API-Key"`` → ``["x", "api", "key"]``."""
    parts: list[str] = []
    word = ""
    for i, char in enumerate(name):
        if not char.isalnum():
            if word:
                parts.append(word)
            word = ""
            continue
        starts = char.isupper() and (
            (word and not word[-1].isupper()) or (word and i + 1 < len(name) and name[i + 1].islower())
        )
        if starts:
            parts.append(word)
            word = ""
        word += char
    if word:
        parts.append(word)
    return [part.lower() for part in parts]


def secret_class(name: str) -> NameClass | None:
    """Returns the class of secret under ``name``, or None. Linear in the length of ``name``. A name that
    contains a placeholder (a redacted key) governs nothing."""
    return _cached(name) if len(name) <= 64 and "<" not in name else None


@lru_cache(maxsize=4096)
def _cached(name: str) -> NameClass | None:
    parts = components(name)
    found: dict[int, NameClass] = {}
    for i, part in enumerate(parts):
        kind = SINGLE.get(part) or PAIRS.get(tuple(parts[max(0, i - 1) : i + 1]))
        kind = kind or PAIRS.get(tuple(parts[max(0, i - 2) : i + 1]))
        if kind is None:
            kind = _of_one_word(part)
        if kind is not None:
            found[i] = kind
    if not found:
        return "KEY" if _is_key(parts) else _personal(parts)
    if any(part in AFTER_EXEMPT for part in parts[max(found) + 1 :]):
        return None
    if any(part in BEFORE_EXEMPT for part in parts[: min(found)]):
        return None
    return min(found.values(), key=_BEST_FIRST.index)


def _is_key(parts: list[str]) -> bool:
    """Returns whether the name is ``<service>_key``: only a generated value then is one."""
    before = parts[:-1] if parts[-1:] == ["key"] else []
    if len(before) > 1 and before[-1] in _STAGES:
        before = before[:-1]
    return bool(before) and (
        before[-1] in SERVICES or before[-1] in _KEY_WORDS or "".join(before[-2:]) in SERVICES
    )


def _of_one_word(part: str) -> NameClass | None:
    """Returns the class of a component that contains the name of a secret: ``dbpassword``, ``mysqlpass``,
    ``password2``."""
    stem = part.rstrip("0123456789")
    if stem != part and SINGLE.get(stem) in ("PASSWORD", "SECRET"):
        return SINGLE[stem]
    for ending, kind in ENDINGS.items():
        if stem.endswith(ending):
            return kind
    return (
        "PASSWORD"
        if stem.endswith(("pass", "pw")) and stem.removesuffix("pw").removesuffix("pass") in _OWNERS
        else None
    )


def label_class(text: str) -> NameClass | None:
    """Returns the class of secret that a label of a form names: ``#password``, ``Password field``, ``Enter
    your API key``; None for a longer text, which may only mention one."""
    if len(text) > _LONGEST_LABEL:
        return None
    words = components(text)
    while words and words[-1] in _FORM_WORDS:
        words.pop()
    kind = secret_class(" ".join(words)[-64:])
    return None if kind in PERSONAL else kind


def is_the_field(text: str) -> bool:
    """Returns whether a label that ``label_class`` accepts is no more than the name of the field:
    ``#password``, ``New password``; not ``Forgot password``."""
    words = components(text)
    return not _SAY_MORE.intersection(words) and "?" not in text


def _personal(parts: list[str]) -> NameClass | None:
    for size in (3, 2, 1):
        kind = PERSONAL_NAMES.get(tuple(parts[-size:])) if len(parts) >= size else None
        if kind == "ADDRESS" and any(part in NOT_PLACES for part in parts[:-1]):
            return None
        if kind is not None:
            return kind
    return None
