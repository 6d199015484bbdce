"""What the chapters say in words of the committed tables."""
import json
import math
from statistics import mean

import pytest

from conftest import ROOT
from minibert.runs.course import read_course


def table(name): return json.loads((ROOT / f"minibert/measured/{name}.json").read_text(encoding="utf8"))


def test_chapters_3_to_7_on_three_seeds_of_each_part():
    of = table("try_out")
    three = of["03"]["the package's embeddings"]
    assert (round(min(three), 2), round(max(three), 2)) == (0.73, 0.80)
    ours, plain, none, no_root, one_head, one_head_no_root = of["04"].values()
    for other, by in ((plain, 0.03), (no_root, 0.01)):
        ahead = [a - b for a, b in zip(other, ours)]
        assert min(ahead) > 0 and mean(ahead) == pytest.approx(by, abs=0.005)
    assert mean(none) - mean(plain) == pytest.approx(1.05, abs=0.005)
    assert sum(a < b for a, b in zip(one_head, ours)) == 2 and min(one_head_no_root) > max(plain)
    ours, bare, no_norm, *_, small, small_bare = of["05"].values()  # the last two: six layers of 0.02
    assert max(ours) < min(no_norm + of["00"]["chapter 0's page"])
    assert mean(bare) - mean(ours) == pytest.approx(0.1, abs=0.02)
    assert max(small) > min(small_bare) and max(small + small_bare) < 0.83
    with_table, dots, own = of["07"].values()
    assert mean(with_table + dots) - mean(own) == pytest.approx(0.07, abs=0.01)


def test_chapter_10_on_warm_up_and_on_the_demo():
    six, demo = table("warmup")["six"], table("demo")
    both = [max(six[k]) for k in six if k.startswith("warm-up") and "clip" not in k]
    assert max(both) < min(six["warm-up, no clipping"])
    unigram, loss = demo["summary"]["unigram_loss"], {line["step"]: line for line in demo["metrics"]}
    assert all(abs(loss[n]["mlm_loss"] - unigram) < 0.35 for n in range(40, 101, 10))
    assert all(abs(loss[n]["nsp_loss"] - math.log(2)) < 0.05 for n in range(10, 271, 10))
    assert loss[270]["mlm_loss"] < 2 and round(loss[300]["mlm_loss"], 1) == 1.4
    assert demo["names_both_hidden"][0] == 12 and read_course()["names"][0] == 24


def test_chapter_21_on_what_each_kind_of_model_knows():
    for run in table("three")["runs"]:
        of = run["facts"]["the right tells"]
        off = (of["right"] - of["left_best"]) / (0.147 * 0.853 / of["n"]) ** 0.5  # in errors
        assert abs(off) < 1 if run["kind"] == "gpt" else off > 4
        of = run["facts"]["pronoun"]
        assert (abs(of["right"] - of["commonest"]) > 3 * (0.25 / of["n"]) ** 0.5) == (run["kind"] != "t5")


def test_readers_of_stories_on_three_seeds():
    found = table("answering")
    for kind in ("course", "fresh"):
        rates = {name.split("/")[1]: run["val"][-1][1] for name, run in found["runs"].items() if name.startswith(kind) and name.endswith("/3")}
        assert len(rates) == 4 and min(rates, key=rates.get) == f"{found['rate'][kind]:g}"
        runs = [found["runs"][f"{kind}/{found['rate'][kind]:g}/{seed}"] for seed in range(3)]
        shares = [mean(bytes.fromhex(run["f1"])) / 100 for run in runs]
        assert found["figures"][kind]["f1"]["of_seeds"] == pytest.approx(shares) and found["figures"][kind]["f1"]["mean"] == pytest.approx(mean(shares))
    figures = {name: own["f1"] for name, own in found["figures"].items()}
    assert figures["best_possible"]["mean"] == 1 and figures["no_answer"]["mean"] == pytest.approx(1 - found["kinds"]["answer"] / found["asked"])
    assert figures["course"]["interval"][0] > figures["fresh"]["interval"][1] and figures["best_sentence"]["mean"] < 0.2


def test_a_coin_for_each_token_teaches_a_t5_less():  # chapter 21
    coins, unigram = table("kinds")["coins"], table("three")["baselines"]["masked"]["unigram_loss"]
    shown = {name: [round(own["nats"], 2), *(round(end, 2) for end in own["interval"])] for name, own in coins.items()}
    assert shown["t5 asked spans"] == [2.97, 2.92, 3.01] and shown["coins asked coins"] == [5.07, 5.02, 5.12]
    assert round(unigram, 2) == 4.93 < coins["coins asked coins"]["interval"][0]
