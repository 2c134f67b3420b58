from onward.demo.audit import compare


def test_a_planted_loss_and_a_planted_duplicate_are_caught() -> None:
    verdict = compare(accepted=["a", "b", "c"], stored=["a", "c", "c", "d"])
    assert verdict.lost == ["b"]
    assert verdict.duplicates == ["c"]
    assert verdict.unexpected == ["d"]
    assert (verdict.accepted, verdict.stored) == (3, 3)


def test_equal_sets_are_clean() -> None:
    verdict = compare(accepted=["a", "b"], stored=["b", "a"])
    assert (verdict.lost, verdict.duplicates, verdict.unexpected) == ([], [], [])
