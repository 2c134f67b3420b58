"""Detects user messages that ask to redo or correct the agent's work, or thank for it, by phrases.

The phrases are of a dozen languages. They refer to finished work (``try again``, ``das ist falsch``). Words
that a task may also contain (``wrong``, ``again``) count only at the beginning of a message and before a
punctuation mark. All is one RE2 expression, so the time is linear. A false alarm costs an honest agent: add
no words that a task may contain.
"""

from __future__ import annotations

from typing import Any

import re2

_LONGEST = 2000
"""Maximum characters searched: a correction stands at the beginning of a message."""

ANYWHERE = (
    # English
    "try (?:it |that |this )?(?:once )?again", "do (?:it|that|this) (?:over )?again",
    "redo (?:it|that|this)",
    "(?:that|this|it)(?:['’]s| is| was) (?:still |just |completely |all )?(?:wrong|incorrect|not right"
    "|not correct|not what i (?:asked|wanted|meant))",
    "(?:that|this)(?: is|['’]s)? not what i (?:asked|wanted|meant)", "you (?:made|have made) a mistake",
    "you (?:got|have got) (?:it|that|this) wrong",
    "(?:it|that|this) (?:still )?(?:does not|doesn['’]t) work",
    "still (?:wrong|broken|not working|failing)",
    "(?:fix|correct) (?:it|that|your (?:mistakes?|errors?|answer|code))", "start over",
    # German
    "versuch(?:e|en sie)? es (?:noch ?mals?|noch einmal|erneut)",
    "(?:mach|mache) (?:es|das) (?:noch ?mal|neu)",
    "(?:das|es) (?:ist|war) (?:leider |immer noch |noch immer )?(?:falsch|nicht richtig|nicht korrekt)",
    "(?:das|es) stimmt (?:so |leider )?nicht", "das habe ich nicht gemeint", "bitte korrigier\\pL*",
    "(?:das|es) (?:geht|funktioniert) (?:immer noch |noch immer )?nicht",
    # French
    "(?:ré)?essa(?:ie|ye|yez) (?:encore|à nouveau|de nouveau)", "réessa(?:ie|ye|yez)", "recommence\\pL*",
    "c['’]est (?:toujours )?(?:faux|incorrect|pas (?:bon|correct|juste))",
    "ce n['’]est pas ce que j(?:e|['’]\\pL+)",
    "(?:ça|cela) ne (?:marche|fonctionne) pas", "corrige[- ](?:le|la|ça|cela)",
    # Spanish and Portuguese
    "int[eé]nta(?:lo)? (?:de nuevo|otra vez)", "hazlo (?:de nuevo|otra vez)",
    "(?:eso|esto) (?:está|es) (?:mal|incorrecto)", "no es lo que (?:pedí|quería)",
    "(?:eso|esto)? ?no funciona", "corrígelo", "tent[ea] (?:de novo|novamente|outra vez)", "faça de novo",
    "(?:isso|isto) está (?:errado|incorreto)", "não é o que (?:eu )?(?:pedi|queria)",
    "(?:isso|isto)? ?não funciona",
    # Italian and Dutch
    "riprova", "rifallo", "(?:questo )?(?:è|e['’]) sbagliato", "non è quello che", "non funziona",
    "correggil[oa]", "probeer het (?:opnieuw|nog (?:eens|een keer))", "dat (?:klopt|werkt) niet",
    "dat is (?:fout|niet goed)",
    # Polish and Russian
    "spróbuj (?:ponownie|jeszcze raz)", "(?:to )?jest (?:źle|błędne)", "to nie działa", "popraw to",
    "попробуй(?:те)? (?:ещ[её] раз|снова)", "это (?:неправильно|неверно|не так|не работает)",
    "передела(?:й|йте)", "исправь(?:те)?",
)  # fmt: skip
UNSPACED = (
    # Chinese, Japanese, Korean: no spaces between words
    "再试一次", "重新来", "重做", "不对(?:$|[。，,.!！])", "错了", "不是我要的",
    "请修正(?:它|这个|$|[。，,.!！])",
    "やり直し", "もう一度", "違います", "間違ってい", "間違い(?:です|だ|でした)", "[こそ]れを修正して",
    "다시 해", "다시 시도", "틀렸", "잘못됐", "(?:그것|그거|이것|이거)[을를]? ?수정해",
)  # fmt: skip
AT_FIRST = (
    "wrong", "incorrect", "not (?:quite|right|correct)", "again", "redo", "retry",
    "falsch", "noch ?mal", "noch einmal", "nochmals", "stimmt nicht", "korrigier\\pL*", "faux",
    "incorrecto", "errado", "sbagliato", "fout", "opnieuw", "źle", "неправильно",
    "неверно", "ещ[её] раз",
)  # fmt: skip

THANKS = (
    "thanks?", "thank you", "thx", "danke(?: schön| sehr)?", "vielen dank", "merci(?: beaucoup)?",
    "(?:muchas )?gracias", "(?:muito )?obrigad[oa]", "grazie(?: mille)?", "dank (?:je|u)(?: wel)?", "bedankt",
    "dzi[eę]ki", "dziękuję", "спасибо",
)  # fmt: skip
"""Words of thanks; they count at the beginning of a message alone."""
UNSPACED_THANKS = ("谢谢", "感谢", "ありがとう", "감사합니다", "고마워")


def _expression() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    edge = r"[^\pL\pN]"
    return re2.compile(
        rf"^\W*(?:{'|'.join(AT_FIRST)})\s*(?:$|[.,:;!?])"
        rf"|(?:^|{edge})(?:{'|'.join(ANYWHERE)})(?:$|{edge})"
        rf"|{'|'.join(UNSPACED)}",
        options,
    )


_ASKS = _expression()
_THANKS = re2.compile(rf"(?i)^\W*(?:(?:{'|'.join(THANKS)})(?:$|[^\pL\pN])|{'|'.join(UNSPACED_THANKS)})")


def asks_for_correction(message: str) -> bool:
    """Checks whether the beginning of ``message`` asks to redo or correct."""
    return _ASKS.search(message[:_LONGEST]) is not None


def says_thanks(message: str) -> bool:
    """Checks whether ``message`` begins with thanks and asks for no correction."""
    return _THANKS.search(message[:_LONGEST]) is not None and not asks_for_correction(message)
