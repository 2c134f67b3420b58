"""Messages that ask to redo or correct, and messages that only look like it."""

import pytest

from onward.reward.measures.correction_requests import asks_for_correction

ASKS = [
    "Please try again.",
    "That's wrong.",
    "That is still incorrect",
    "it doesn’t work",
    "you made a mistake in line 3",
    "This is not what I asked for",
    "Please fix that",
    "Wrong. It is 5.",
    "AGAIN",
    "Versuch es noch einmal",
    "Das ist leider falsch",
    "Das stimmt nicht: 5",
    "Nochmal, bitte",
    "Bitte korrigieren",
    "C'est faux.",
    "Réessaie avec 4",
    "Ce n'est pas ce que je voulais",
    "Ça ne marche pas",
    "Recommencez",
    "Inténtalo de nuevo",
    "Eso está mal",
    "No es lo que pedí",
    "Tente novamente",
    "Isso está errado",
    "Riprova",
    "È sbagliato",
    "Probeer het opnieuw",
    "Dat klopt niet",
    "Spróbuj ponownie",
    "To jest źle",
    "Попробуй ещё раз",
    "Это неправильно",
    "Переделай",
    "再试一次",
    "你错了",
    "不对，应该是5",
    "请修正。",
    "間違いです",
    "これを修正してください",
    "그거 수정해 주세요",
    "やり直してください",
    "違います",
    "다시 해 주세요",
]
FINE = [
    "Thanks, that is right.",
    "Great work!",
    "Now fix the header of the page",
    "no problem",
    "No, thanks.",
    "Now do the same for May",
    "fix this function too",
    "correct the spelling in my essay",
    "Is anything wrong with row 4?",
    "Find the incorrect rows",
    "Norway",
    "It was named wrongly by them",
    "again and again they met",
    "Danke, das ist richtig",
    "Suche die Fehler im Text",
    "merci, c'est bon",
    "muy bien",
    "obrigado",
    "grazie, perfetto",
    "спасибо",
    "谢谢，很好",
    "ありがとう",
    "请解释不对称加密",
    "这样对不对？",
    "请修正下面句子的语法",
    "次のバグを修正してください",
    "間違いなく届きましたか",
    "이 파일을 수정해 주세요",
    "",
]


@pytest.mark.parametrize("message", ASKS)
def test_asks(message):
    assert asks_for_correction(message)


@pytest.mark.parametrize("message", FINE)
def test_does_not_ask(message):
    assert not asks_for_correction(message)


def test_what_stands_far_behind_is_not_read():
    assert not asks_for_correction("x" * 3000 + " try again")
    assert not asks_for_correction("no " * 1_000_000)  # linear: with backtracking it would not end
