"""Who has what at a story's end, read off the printed text, and openings."""
import re

from minibert.data.stories import stories
from summarising import opening_pairs, owner_pairs

TOLD = stories(200)


def test_the_owner_is_who_the_story_says():
    "By rules of our own for one plot's two ends."
    checked = 0
    for text, answer in owner_pairs([story for story in TOLD if story.plot == "contest"]):
        winner = re.search(r"(\w+) (?:was first|won the prize|was faster and won)|prize was for (\w+)", text)
        if winner and (name := winner[1] or winner[2]) not in ("She", "He"):
            assert answer == f"{name.lower()} has the prize."
            checked += 1
    assert checked >= 4
    ends = {(s.plot, s.sentiment) for s in TOLD if s.plot in ("lost", "birthday", "contest")}
    assert len(ends) == 6
    for story in TOLD:
        if story.plot not in ("lost", "birthday", "contest"): assert owner_pairs([story]) == []
        elif story.plot != "contest": assert ("nobody" in owner_pairs([story])[0][1]) == (story.sentiment == "sad")


def test_openings_are_what_is_missing():
    for story, (text, answer) in zip(TOLD, opening_pairs(TOLD), strict=True): assert f"{answer} {text}" == story.text
