"""The built-in stories and their oracle: what the reference `stories` has no room for (every plot, other processes, the oracle on many stories)."""
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
import torch
from conftest import ROOT

from minibert.data import stories as module
from minibert.core.seeds import seeded
from minibert.data.stories import Oracle, best_masked_accuracy, stories


@pytest.fixture(scope="module")
def told(): return stories(600)


def test_stories_are_the_same_in_every_process(told):
    code = "from minibert.data.stories import stories; import zlib; print(zlib.crc32(repr([s.text for s in stories(50)]).encode()))"
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                           env=os.environ | {"PYTHONHASHSEED": seed}).stdout for seed in ("0", "1")}
    assert len(said) == 1
    assert stories(5) == told[:5] and stories(5, seed=1) != told[:5]


@pytest.mark.parametrize("counts, digest", [
    ({0: 800, 1: 100}, "23afcb402d6bb4ad820b4bd521b574416c09be5e95d78396990173774c0ad327"),
    pytest.param({0: 3000, 1: 400, 7: 400}, "68c4c1ec117b56aeaa7e46ad842ea55563e800ef00b5b0130c0ca651d3411272", marks=pytest.mark.slow)])
def test_stories_never_change(counts, digest):
    "Every figure of the course stands on them: hundreds or thousands of each split, with all that is known of each word."
    found = sha256()
    for split in ("train", "validation", "test"):
        for seed, count in counts.items():
            for s in stories(count, seed, split):
                found.update(repr((s.plot, s.sentiment, s.sentences, s.words, s.tags, s.columns, s.mentions)).encode())
    assert found.hexdigest() == digest


def test_splits_never_share_a_story():
    seen = {split: {s.text for seed in range(3) for s in stories(300, seed, split)} for split in ("train", "validation", "test")}
    assert not seen["train"] & seen["validation"] and not seen["train"] & seen["test"] and not seen["validation"] & seen["test"]
    with pytest.raises(ValueError, match="splits"): stories(1, split="dev")


def test_every_alternative_can_be_told_and_is_well_formed(told):
    for plot, parts in module.story_plots().items():
        for end in ("happy", "sad"):
            for step in parts["start"] + parts[end]:
                for words in step:
                    if words: assert words[-1][0] in (".", "!"), (plot, words)
    for story in told:
        assert 40 <= len(story.flat) <= 100 and 5 <= len(story.sentences) <= 9
        for sentence, words, tags, columns in zip(story.sentences, story.words, story.tags, story.columns):
            assert len(words) == len(tags) == len(columns)
            assert sentence[0].isupper() and sentence[-1] in ".!" and "  " not in sentence
            assert "".join(words) == sentence.lower().replace(" ", "")


def test_agreement_and_gender(told):
    girls = {row["hero"] for row in module.story_tables()["hero"].rows if row["he"] == "she"}
    for story in told:
        words = story.flat
        for p, column in enumerate(story.flat_columns):
            if column == "was":
                thing = words[story.flat_columns.index("thing")]
                assert words[p] == ("were" if thing in ("boots", "gloves", "keys", "shoes") else "was")
        hero = next((w for w, c in zip(words, story.flat_columns) if c == "hero"), None)
        for word, column in zip(words, story.flat_columns):
            if column == "he": assert (word == "she") == (hero in girls)


def test_tags_are_those_of_english(shared_data):
    path = shared_data / "ud_english_ewt" / "en_ewt-ud-train.conllu"
    if not path.exists(): pytest.skip("needs UD English EWT")
    seen = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = line.split("\t")
        if len(cells) > 3: seen.setdefault(cells[1].lower(), Counter())[cells[3]] += 1
    ours = Counter((w, t) for s in stories(1000) for ws, ts in zip(s.words, s.tags) for w, t in zip(ws, ts))
    common = {(w, t): n for (w, t), n in ours.items() if sum(seen.get(w, {}).values()) >= 30}
    strange = {pair for pair in common if not seen[pair[0]][pair[1]]}
    assert len(common) > 150 and strange <= {("water", "VERB")}


def test_posteriors_are_distributions_that_hold_the_truth(told):
    rng = random.Random(0)
    for story in told[:200]:
        n = len(story.flat)
        hidden = {p for p in range(n) if rng.random() < rng.random()}
        first, last = sorted(rng.sample(range(n + 1), 2))
        for p, words in story.posterior(hidden, range(first, last)).items():
            assert abs(sum(words.values()) - 1) < 1e-9 and words[story.flat[p]] > 0


def test_posterior_agrees_with_sampling():
    "Stories that share a story's templates and agree with what is visible, drawn and counted."
    story = next(s for s in stories(200) if s.plot == "walk")
    table = module.story_tables()
    steps = [[(w if not c else "", t, c) for w, t, c in zip(*parts)] for parts in zip(story.words, story.tags, story.columns)]
    used = {table[c] for c in story.flat_columns if c}
    free = {t for t in used if t in (table["rain"], table["number"], table["day"])}
    hidden = {p for p, c in enumerate(story.flat_columns) if c in ("rain", "rains", "wear", "number", "day", "dry")}
    fixed = {t: next(r for k, r in enumerate(t.rows) if module.rows_left(story, range(len(story.flat))).get(t, t.all) >> k & 1) for t in used}
    rng, votes, n = random.Random(1), Counter(), 3000
    for _ in range(n):
        rows = fixed | {t: rng.choice(t.rows) for t in free}
        words = module.tell_story(story.plot, story.sentiment, steps, rows).flat
        seen = [p for p in range(len(words)) if p not in hidden]
        if all(words[p] == story.flat[p] for p in seen): votes.update((p, words[p]) for p in hidden); votes["kept"] += 1
    for p, words in story.posterior(hidden).items():
        for word, prob in words.items():
            error = 5 * (prob * (1 - prob) / votes["kept"]) ** 0.5 + 1e-12
            assert abs(votes[p, word] / votes["kept"] - prob) <= error


def test_more_knowledge_never_lowers_the_expected_best_guess(told):
    oracle = Oracle(told)
    where = np.arange(oracle.starts[-1]).reshape(1, -1)
    lots = torch.rand(where.shape, generator=seeded(0)).numpy()
    chosen = lots < 0.1
    bounds = [best_masked_accuracy(told, where, chosen, lots < share) for share in (0.1, 0.3, 0.6, 1.0)]
    assert bounds == sorted(bounds, reverse=True) and 0.9 < bounds[0] <= 1
    assert best_masked_accuracy(told, where, chosen, chosen & False) == 1.0  # all kept: all known


def test_oracle_takes_tensors_and_refuses_foreign_positions(told):
    positions = torch.arange(40).view(2, 20)
    chosen = torch.ones(2, 20, dtype=torch.bool)
    best = Oracle(told).best(positions, chosen, chosen)
    assert best.shape == (2, 20) and (best > 0).all() and (best <= 1).all()
    positions[0, :3] = -1
    best = Oracle(told).best(positions, chosen & (positions >= 0), chosen)
    assert np.isnan(best[0, :3]).all()
    with pytest.raises(ValueError, match="past"): Oracle(told).best(positions + 10**6, chosen, chosen)


def test_the_posterior_of_boots():
    "No choice of hidden words gives 1/8, as that of the ball does."
    table = module.story_tables()
    rows = {t: t.rows[0] for t in dict.fromkeys(table.values())}
    rows[table["thing"]] = next(r for r in table["thing"].rows if r["thing"] == "boots")
    lost = module.story_plots()["lost"]
    story = module.tell_story("lost", "happy", [lost["start"][1][0], lost["happy"][1][0]], rows)
    boots, them = story.flat.index("boots"), story.flat.index("them")
    assert story.posterior({boots, them})[boots]["boots"] == 1 / 12 and story.posterior({boots})[boots]["boots"] == 1 / 4
    seen = {story.posterior({boots, *others})[boots]["boots"] for k in range(3) for others in itertools.combinations(range(len(story.flat)), k)}
    assert seen == {1 / 12, 1 / 4}
