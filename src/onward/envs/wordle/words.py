"""The words of Wordle: common English words of five letters, chosen by hand for Onward.

Their order does not matter. Adding or removing a word changes the panels, so the version of the environment
must change with it.
"""

from __future__ import annotations

import hashlib

_TEXT = """
about above abuse actor adapt admit adopt adult after again agent agree ahead alarm album alert alike alive
allow alone along alter among angel anger angle angry apart apple apply arena argue arise armor arrow aside
asset audio avoid awake award aware badge baker basic basin basis beach beard beast began begin being below
bench berry birth black blade blame blank blast blaze blend bless blind block blood bloom board boast bonus
booth bound brain brake brand brave bread break breed brick bride brief bring broad broke brook broom
brown brush build built bunch burst cabin cable camel canal candy cargo carry carve catch cause cedar chain
chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir chose civic civil
claim class clean clear clerk cliff climb cloak clock close cloth cloud clown coach coast coral couch
cough could count court cover crack craft crane crash crazy cream creek crime crisp cross crowd crown crude
cruel crust curve cycle daily dairy dance death debut decay delay dense depth devil diary dirty donor doubt
dozen draft drain drama drank dream dress drift drill drink drive drove eager eagle early earth eight elbow
elder elect elite empty enemy enjoy enter entry equal error essay event every exact exist extra fable faint
fairy faith false fancy fault favor feast fence ferry fever fiber field fifth fifty fight final first flame
flash fleet flesh float flock flood floor flour fluid flute focus force forge forth forty forum found frame
fresh front frost fruit funny ghost giant given glass globe glory glove grace grade grain grand grant grape
graph grasp grass grave great green greet grief grill group grove guard guess guest guide habit happy harsh
haste heart heavy hedge hello hobby honey honor horse hotel house human humor hurry ideal image imply index
inner input irony issue ivory jelly jewel joint judge juice kneel knife knock known label labor large
laser later laugh layer learn least leave legal lemon level lever light limit linen liver local lodge logic
loose lover lower loyal lucky lunch magic major maker maple march match mayor medal media melon mercy merge
merit merry metal meter midst might minor mixed model money month moral motor mount mouse mouth movie music
naked nerve never newly night noble noise north novel nurse ocean offer often olive onion opera orbit order
organ other ought outer owner paint panel panic paper party pasta paste patch pause peace peach pearl penny
phase phone photo piano piece pilot pinch pitch pizza place plain plane plant plate plaza poets point polar
porch pound power press price pride prime print prior prize proof proud prove pulse punch pupil puppy purse
queen quest quick quiet quite quote radar radio raise ranch range rapid ratio reach react ready realm rebel
refer relax reply rider ridge rifle right rigid rival river roast robin robot rocky rough round route royal
rural salad sauce scale scare scene scent scope score scout seize sense serve seven shade shake shame shape
share shark sharp sheep sheet shelf shell shift shine shirt shock shoot shore short shout shown sight silly
since skill skirt slave sleep slice slide slope small smart smell smile smoke snake solar solid solve sorry
sound south space spare spark speak speed spell spend spice spine spite split spoke spoon sport spray squad
stack staff stage stain stair stake stamp stand stare start state steak steal steam steel steep stick stiff
still stock stone store storm story stove straw strip stuck study stuff style sugar suite sunny super sweet
swing sword table taste teach tenth thank theft theme thick thief thing think third thorn those three throw
thumb tiger tight title toast today token tooth topic total touch tough tower toxic trace track trade trail
train trait treat trend trial tribe trick troop truck truly trunk trust truth tulip twice twist uncle under
union unite unity until upper upset urban usage usual valid value vapor video visit vital vivid vocal voice
voter wagon waist waste watch water weary weave wedge weird whale wheat wheel where which while white whole
whose widow width witch woman world worry worse worth would wound wrist write wrong yacht yield young youth
zebra
"""

WORDS: tuple[str, ...] = tuple(sorted(_TEXT.split()))

VALIDATION = 75
TEST = 75


def _by_split() -> dict[str, tuple[str, ...]]:
    """Puts each word in one split, by its hash, so that the splits do not follow the alphabet."""
    mixed = sorted(WORDS, key=lambda word: hashlib.sha256(f"wordle/{word}".encode()).digest())
    return {
        "train": tuple(mixed[TEST + VALIDATION :]),
        "validation": tuple(mixed[TEST : TEST + VALIDATION]),
        "test": tuple(mixed[:TEST]),
    }


SECRETS = _by_split()
"""Split → the words that are secrets there. Any word may be guessed in any split."""
